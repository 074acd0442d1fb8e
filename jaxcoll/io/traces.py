"""Timelines as Chrome trace JSON, for Perfetto (ui.perfetto.dev) and chrome://tracing.

There is a process per sending vertex and a track per link: no two messages overlap on a link, which
the format requires of a track. Times are microseconds, rounded to the nanoseconds that Perfetto
keeps.
"""

from __future__ import annotations

import gzip
import json
import os
from typing import Any

import numpy as np

from jaxcoll.errors import FormatError, ScheduleError
from jaxcoll.io.files import write_bytes
from jaxcoll.numerics import checks
from jaxcoll.simulation import Timeline

MOST_EVENTS = 2**21


def dumps(timeline: Timeline) -> str:
    """The trace of a timeline.

    Raises:
        FormatError: there are more messages on links than a viewer can open.
    """
    checks.instance(timeline, Timeline, "timeline", ScheduleError)
    schedule, links = timeline.schedule, timeline.hop_link
    if len(links) > MOST_EVENTS:
        raise FormatError(
            f"the links carry {len(links)} messages, and a trace has at most {MOST_EVENTS}; "
            "simulate a schedule of fewer chunks"
        )
    topology = schedule.topology
    src, dst = topology.src.tolist(), topology.dst.tolist()
    names = list(topology.vertex_names) or [
        f"rank {v}" if v < topology.num_ranks else f"switch {v}"
        for v in range(topology.num_vertices)
    ]
    events: list[dict[str, Any]] = []
    for link in np.unique(links).tolist():
        where = {"ph": "M", "pid": src[link], "tid": link}
        events += [
            {**where, "name": "process_name", "args": {"name": names[src[link]]}},
            {**where, "name": "thread_name", "args": {"name": f"to {names[dst[link]]}"}},
            {**where, "name": "thread_sort_index", "args": {"sort_index": link}},
        ]
    # Ends are rounded, not lengths: rounded lengths would let neighbours on a track overlap by a
    # nanosecond, and viewers draw overlapping events on another track, or not at all.
    nanoseconds = 1e9 * timeline.clock.seconds(np.ones(1, np.int64))[0]
    start = np.rint(timeline.hop_start * nanoseconds).astype(np.int64)
    end = np.rint((timeline.hop_start + timeline.hop_busy) * nanoseconds).astype(np.int64)
    message = np.repeat(np.arange(schedule.num_messages), np.diff(timeline.hop_ptr))
    ptr, step = schedule.message_ptr, np.asarray(schedule.step)
    each = float(timeline.nbytes) / schedule.collective.num_chunks
    for hop in np.lexsort((start, links)).tolist():
        first, last = int(ptr[message[hop]]), int(ptr[message[hop] + 1])
        count, link = last - first, int(links[hop])
        chunk = int(schedule.chunk[first])
        events.append({
            "ph": "X", "pid": src[link], "tid": link, "ts": int(start[hop]) / 1000,
            "dur": int(end[hop] - start[hop]) / 1000,
            "name": f"chunk {chunk}" if count == 1 else f"{count} chunks from {chunk}",
            "args": {"step": int(step[first]), "bytes": each * count,
                     "adds": bool(schedule.reduce[first])},
        })  # fmt: skip
    whole = {
        "displayTimeUnit": "ns",
        "otherData": {
            "model": timeline.model,
            "order": timeline.order.name,
            "seconds": timeline.time,
        },
        "traceEvents": events,
    }
    return json.dumps(whole, separators=(",", ":"), allow_nan=False) + "\n"


def save(path: str | os.PathLike, timeline: Timeline) -> None:
    """Write ``dumps(timeline)``, all or nothing; compressed if the path ends with ``.gz``.

    Raises:
        OSError: the file cannot be written.
    """
    content = dumps(timeline).encode()
    is_zipped = isinstance(path, (str, os.PathLike)) and os.fsdecode(path).endswith(".gz")
    write_bytes(path, gzip.compress(content, mtime=0) if is_zipped else content)
