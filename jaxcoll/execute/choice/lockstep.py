"""Processes that measure together: the same programs, as often as the first process decides.

Programs of several processes wait for one another, so all must call them equally often. In the end
all must know the same result, since they choose by it. Clocks differ, so only the first process's
clock counts.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax

from jaxcoll import jax_internals
from jaxcoll.errors import TuneError

# Time for another process to arrive, and to decide: both may compile meanwhile.
TIMEOUT_SECONDS = 120.0

T = TypeVar("T")
_number = itertools.count()


class Lockstep:
    """The processes of a measurement, of which this is one.

    Args:
        members: the indices of the processes, ascending; the first one decides.
        call: the name of the function that they all call, for errors.
    """

    def __init__(self, members: Sequence[int], call: str) -> None:
        self._members, self._call = list(members), call
        self._me = jax.process_index()
        self._prefix = f"jaxcoll/measure/{next(_number) if len(self._members) > 1 else 0}"
        self._turn = 0

    @property
    def decides(self) -> bool:
        """Whether this process is the one that decides."""
        return self._me == self._members[0]

    def decided(self, make: Callable[[], T]) -> T:
        """A decision of the first process, sent to all of them as JSON types.

        Raises:
            TuneError: on all processes, if ``make`` fails or the first does not answer in time.
        """
        if len(self._members) == 1:
            return make()
        self._turn += 1
        key = f"{self._prefix}/{self._turn}/decision"
        if not self.decides:
            # The first process's own wait for others ends earlier, and its error names the missing
            # one.
            found = jax_internals.fetch(key, 1.25 * TIMEOUT_SECONDS)
            if found is None:
                raise TuneError(self._absent(self._members[0]))
            said = json.loads(found)
            if "error" in said:
                raise TuneError(said["error"])
            return said["value"]
        try:
            value = make()
        except Exception as error:
            jax_internals.publish(key, json.dumps({"error": str(error)}))
            raise
        jax_internals.publish(key, json.dumps({"value": value}))
        return value

    def agreed(self, mine: Any, make: Callable[[list[Any]], T]) -> T:
        """A decision from the values of all processes, in their order, sent to all as JSON types.

        Raises:
            TuneError: on all processes, if ``make`` fails or one does not answer in time.
        """
        key = f"{self._prefix}/{self._turn + 1}"
        if not self.decides:
            jax_internals.publish(f"{key}/{self._me}", json.dumps(mine))

        def others() -> Iterator[Any]:
            for member in self._members[1:]:
                found = jax_internals.fetch(f"{key}/{member}", TIMEOUT_SECONDS)
                if found is None:
                    raise TuneError(self._absent(member))
                yield json.loads(found)

        return self.decided(lambda: make([mine, *others()]))

    def _absent(self, member: int) -> str:
        return (
            f"process {member} did not come to {self._call} within {TIMEOUT_SECONDS:g} s, and "
            f"processes {', '.join(map(str, self._members[:8]))}"
            f"{', ...' if self._members[8:] else ''} measure together; call it on all of them"
        )


def host() -> str:
    """The host of this process, as seen by messages: those between processes of a host stay in it.

    Processes in separate network namespaces are on different hosts: their messages cross real or
    emulated cables.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()
