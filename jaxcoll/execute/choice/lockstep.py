"""Processes that measure together: the same programs, as often as the first of them decides.

Programs of several processes wait for one another, so that all must call them equally often; and
all must know the same in the end, since they choose by it. Clocks differ: the first process's is
the one that counts.
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

# For another process to come, and to decide: both may compile meanwhile.
TIMEOUT_SECONDS = 120.0

T = TypeVar("T")
_number = itertools.count()


class Lockstep:
    """The processes of a measurement, of which this is one.

    Args:
        members: their indices, ascending; the first one decides.
        call: the function that they all call, for errors.
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
        """A decision of the first process, on all of them; of JSON's types.

        Raises:
            TuneError: on all processes where ``make`` fails; where the first does not say in time.
        """
        if len(self._members) == 1:
            return make()
        self._turn += 1
        key = f"{self._prefix}/{self._turn}/decision"
        if not self.decides:
            # The first one's own wait for others ends before, and its error says who is missing.
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
        """A decision by the words of each, in their order, on all of them; of JSON's types.

        Raises:
            TuneError: on all processes where ``make`` fails, or one does not say in time.
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
    """The host of this process, as far as messages know: those between its processes stay in it.

    Processes in network namespaces of their own are on different hosts: their messages go over
    cables, real ones or not.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()
