"""Compact schedules: two bytes and a bit per send, on disk, for tens of thousands of ranks.

A compact schedule is an all_gather of all ranks, on a network without switches, in which every link
carries at most one chunk per step. Sends are sorted by (step, link). A bitmap of active links gives
the link of every send, so only its chunk is stored, in two bytes where that is enough: 200 x 200
ranks take 3.6 GB, where the columns of ``Schedule`` would take 14.

A process may be killed while it writes, so until a folder is whole it is a draft with a name of its
own. A draft lies beside its target, so that the file system can put it in the target's place in one
step. It is locked as long as its process lives, and the next process that writes the same target
removes the drafts of processes that were killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxcoll import fields
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, FormatError, ScheduleError
from jaxcoll.kinds import ALL_GATHER
from jaxcoll.numerics import checks
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule, decode_provenance, encode_provenance
from jaxcoll.topology import Topology

__all__ = ["CompactSchedule", "CompactWriter", "check_compact", "open_compact"]


_FORMAT = "jaxcoll compact schedule 1"
_HEADER_BYTES = 2**20
_MAX_COUNT = 2**48


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CompactSchedule:
    """A schedule on disk, mapped into memory where it is read.

    Attributes:
        topology: the network, without switches.
        collective: an all_gather of all ranks in order.
        step_ptr: sends of step t are ``step_ptr[t]..step_ptr[t + 1] - 1``; int64, (steps + 1,).
        active: bit ``link & 7`` of ``active[t, link >> 3]`` says whether a link carries a chunk in
            step t, uint8 of shape (steps, links / 8 rounded up).
        chunk: chunk of each send, by step and link, uint16 or uint32 of shape (sends,).
        order: every chunk's position in an order in which neighbouring chunks are sent at about the
            same time, uint32 of shape (chunks,). A replay that indexes its tables by it stays in
            cache.
        provenance: the synthesizer and parameters that made it.
    """

    topology: Topology
    collective: Collective
    step_ptr: np.ndarray
    active: np.ndarray
    chunk: np.ndarray
    order: np.ndarray
    provenance: Provenance = dataclasses.field(default_factory=Provenance)

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return len(self.step_ptr) - 1

    @property
    def num_sends(self) -> int:
        """Number of sends."""
        return len(self.chunk)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return sum(c.nbytes for c in (self.step_ptr, self.active, self.chunk, self.order))

    def links(self, step: int) -> np.ndarray:
        """The links that carry a chunk in a step, in order."""
        row = np.unpackbits(self.active[step], bitorder="little")
        return np.flatnonzero(row[: self.topology.num_links])

    def to_schedule(self) -> Schedule:
        """The same schedule as columns in memory."""
        edge = [self.links(step) for step in range(self.num_steps)]
        return Schedule(
            self.topology,
            self.collective,
            Edges.from_links(self.topology),
            self.step_ptr,
            np.concatenate([np.zeros(0, np.int64), *edge]),
            np.asarray(self.chunk, np.int32),
            np.zeros(self.num_sends, bool),
            self.provenance,
        )

    def __repr__(self) -> str:
        return (
            f"CompactSchedule({self.collective.kind} on {self.topology.name or self.topology}: "
            f"{self.num_steps} steps, {self.num_sends} sends, {self.nbytes / 1e9:.3f} GB)"
        )


def check_compact(topology: Topology, collective: Collective) -> None:
    """Refuse a topology or collective that has no compact schedule.

    Raises:
        ScheduleError: switches, another collective than an all_gather, groups.
    """
    if not topology.is_direct:
        raise ScheduleError(f"compact schedules run on networks without switches, not {topology}")
    unequal = collective.shares is not None
    if collective.traits is not ALL_GATHER or collective.is_grouped or unequal:
        raise ScheduleError(
            f"compact schedules carry an all_gather of equal shards of all ranks, not {collective}"
        )
    if topology.num_ranks != collective.num_ranks:
        raise ScheduleError(
            f"the topology has {topology.num_ranks} ranks, the collective {collective.num_ranks}"
        )


# ---------------------------------------------------------------------- files


def _columns(collective: Collective, links: int, steps: int, sends: int) -> dict[str, Any]:
    """Type and shape of each file; little-endian on every machine."""
    wide = collective.num_chunks > 2**16
    return {
        "step_ptr": ("<i8", (steps + 1,)),
        "active": ("u1", (steps, -(-links // 8))),
        "chunk": ("<u4" if wide else "<u2", (sends,)),
        "order": ("<u4", (collective.num_chunks,)),
    }


class CompactWriter:
    """Writes a compact schedule step by step; the folder appears when all of it is written.

    Use as a context manager: an error or an interrupt leaves no files. Files of a killed process
    are removed by the next one that writes the same folder.

    Args:
        folder: to be made; must not exist.
        order: as in ``CompactSchedule``.

    Raises:
        ScheduleError: a topology or collective that ``check_compact`` refuses.
        FileExistsError: the folder exists.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        topology: Topology,
        collective: Collective,
        order: np.ndarray,
    ):
        check_compact(topology, collective)
        self.folder, self.topology, self.collective = Path(folder), topology, collective
        self.provenance = Provenance()
        if self.folder.exists():
            raise FileExistsError(f"{self.folder} exists; remove it or choose another folder")
        self._counts = [0]
        self._types = _columns(collective, topology.num_links, 0, 0)
        self._order = order

    def __enter__(self) -> CompactWriter:
        self._draft, self._lock = locked_draft(self.folder, _make_folder)
        self._active = open(self._draft / "active", "wb")
        self._chunk = open(self._draft / "chunk", "wb")
        return self

    def append(self, active: np.ndarray, chunk: np.ndarray, counts: np.ndarray) -> None:
        """Adds steps.

        Args:
            active, chunk: rows and sends as in ``CompactSchedule``.
            counts: sends of each step.
        """
        self._active.write(np.ascontiguousarray(active, "u1").data)
        self._chunk.write(np.ascontiguousarray(chunk, self._types["chunk"][0]).data)
        # Counts add up in memory, eight bytes per step; sends, which are billions, never do.
        start = self._counts[-1]
        self._counts += (start + np.cumsum(counts)).tolist()

    def __exit__(self, kind, error, trace) -> None:
        # Closed first: a folder that is renamed must be whole. After success the draft has become
        # the folder, and nothing is left to remove.
        self._active.close()
        self._chunk.close()
        try:
            if error is None:
                self._finish()
        finally:
            remove(self._draft)
            os.close(self._lock)

    def _finish(self) -> None:
        for name, values in (("step_ptr", self._counts), ("order", self._order)):
            np.asarray(values, self._types[name][0]).tofile(self._draft / name)
        header = {
            "format": _FORMAT,
            "topology": self.topology.links_digest,
            "ranks": self.collective.num_ranks,
            "chunks_per_shard": self.collective.chunks_per_shard,
            "steps": len(self._counts) - 1,
            "sends": self._counts[-1],
            "provenance": encode_provenance(self.provenance),
        }
        (self._draft / "header.json").write_text(json.dumps(header, indent=2))
        os.replace(self._draft, self.folder)


def _make_folder(draft: Path) -> int:
    draft.mkdir(parents=True)
    return os.open(draft, os.O_RDONLY)


def open_compact(folder: str | os.PathLike, topology: Topology) -> CompactSchedule:
    """A compact schedule written before, mapped into memory.

    Raises:
        FormatError: files that are missing, truncated or of another network.
    """
    folder = Path(checks.instance(folder, (str, os.PathLike), "folder", FormatError))
    checks.instance(topology, Topology, "topology", FormatError)
    try:
        per_shard, steps, sends, provenance = _read_header(folder / "header.json", topology)
        collective = Collective("all_gather", topology.num_ranks, per_shard)
        check_compact(topology, collective)
        # Checked before anything is mapped or allocated in the sizes that the header claims.
        counts = (collective.num_chunks, collective.num_deliveries, sends)
        fields.check_claims(str(folder), topology.num_ranks, *counts)
        layout = _columns(collective, topology.num_links, steps, sends)
        columns = {name: _map_column(folder / name, *form) for name, form in layout.items()}
    except (CollectiveError, ScheduleError, OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{folder} holds no compact schedule of {topology}: {error}") from error
    _check_columns(folder, columns)
    return CompactSchedule(topology, collective, **columns, provenance=provenance)


def _map_column(path: Path, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    # Kernels index the columns unchecked, so a file of another size is refused before it is mapped.
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    found = path.stat().st_size if path.is_file() else None
    if found != expected:
        raise FormatError(f"{path} should have {expected} bytes, has {found}")
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, "r", 0, shape) if expected else np.zeros(shape, dtype)


def _read_header(path: Path, topology: Topology) -> tuple[int, int, int, Provenance]:
    """Chunks per shard, steps, sends and provenance, the network being the one expected."""
    if not path.is_file():
        raise FormatError(f"{path.parent} holds no compact schedule: there is no {path.name}")
    with open(path, "rb") as file:
        data = file.read(_HEADER_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8 text: {error}") from None
    header = fields.Fields(fields.parse(text), str(path))
    header.take("format", fields.exactly(_FORMAT))
    if header.take("topology", fields.text) != topology.links_digest:
        raise FormatError(f"{path.parent} holds a schedule of another network than {topology}")
    header.take("ranks", fields.whole(topology.num_ranks, topology.num_ranks))
    count = fields.whole(0, _MAX_COUNT)
    found = (
        header.take("chunks_per_shard", fields.whole(1, fields.INT32)),
        header.take("steps", count),
        header.take("sends", count),
        header.take("provenance", decode_provenance),
    )
    header.end()
    return found


def _check_columns(folder: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Refuse columns that a replay cannot rely on: their counts, and the order of the chunks."""
    ptr, order = columns["step_ptr"], columns["order"]
    if ptr[0] != 0 or ptr[-1] != len(columns["chunk"]) or (ptr[1:] < ptr[:-1]).any():
        raise FormatError(f"{folder / 'step_ptr'} does not rise from 0 to the number of sends")
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        raise FormatError(f"{folder / 'order'} is not a permutation of the chunks")


def locked_draft(target: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """A new draft of a target, and the open file that locks it; abandoned drafts are removed.

    Args:
        make: makes a file or folder of a name that does not exist, and opens it.
    """
    _remove_abandoned(target)
    while True:
        # A name of fixed length, since the target's own may have all the 255 bytes there are.
        draft = target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}.tmp")
        file = make(draft)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another writer takes it for abandoned
            os.close(file)
            continue
        except OSError:  # no locks in this file system: nobody takes it for abandoned either
            return draft, file
        # Between making and locking it, another writer may have taken it for abandoned.
        if _is_at(draft, file):
            return draft, file
        os.close(file)


def _prefix(target: Path) -> str:
    return f".jaxcoll-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}-"


def _is_at(path: Path, file: int) -> bool:
    """Whether the name still is that of the open file, and not of another writer's new one."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _remove_abandoned(target: Path) -> None:
    """Remove the drafts of a target that no process holds a lock of."""
    # The system drops a lock when its process ends, in whatever way. So a draft without a lock has
    # no writer.
    mine = re.compile(re.escape(_prefix(target)) + r"[0-9a-f]{16}\.tmp")
    with contextlib.suppress(OSError):  # no such folder, or one that may not be listed
        for draft in map(target.with_name, filter(mine.fullmatch, os.listdir(target.parent))):
            # Finished or removed by another writer meanwhile, locked, or without locks at all.
            with contextlib.suppress(OSError):
                file = os.open(draft, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if _is_at(draft, file):
                        remove(draft)
                finally:
                    os.close(file)


def remove(draft: Path) -> None:
    """Remove a draft, a folder with all its files; a missing one is passed over."""
    if draft.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)
