"""A timeline of all processes for Perfetto: the messages that links carried, and predictions."""

from __future__ import annotations

import base64
import collections
import contextlib
import functools
import gzip
import io
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.links import recorder
from jaxcoll.execute.links.recorder import ARRIVES, COLUMNS, LEAVES, PLAYS
from jaxcoll.io.files import checked_path, write_bytes
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.simulation.execution_costs import costs_of

_KEY = "jaxcoll/trace/{}/{}/{}"
_PART = 1 << 20  # characters of a value that the service between processes accepts
_SECONDS = 60.0
_MOST_PROGRAMS = 256

Times = dict[tuple[int, int, int], tuple[float, float]]  # keys are step, sender and receiver


class _Programs(collections.OrderedDict[int, tuple[Schedule, float]]):
    """Schedules that became calls, with the bytes of a rank's buffer, by program number."""

    def remember(self, program: int, schedule: Schedule, nbytes: float) -> None:
        self[program] = schedule, nbytes
        self.move_to_end(program)
        if len(self) > _MOST_PROGRAMS:
            self.popitem(last=False)


PROGRAMS = _Programs()
_traces = itertools.count()


@contextlib.contextmanager
def trace_links(path: str | os.PathLike) -> Iterator[None]:
    """Record the messages sent over links, and write them as a timeline for ui.perfetto.dev.

    All processes enter and leave it together, around calls whose schedules are played over links,
    as is the default between processes on CPUs; wait for the results inside. The first process
    writes the file. For each device it shows a process with a track for its calls and two tracks
    per link. One has the messages as measured, from the sender's first byte to the receiver's last;
    the other has them as ``simulate`` predicts them from the moment when the first rank began the
    call. Times come from the machines' clocks.

    Args:
        path: the file to write; compressed if its name ends with ``.gz``.

    Raises:
        CollectiveError: schedules cannot be played over links here, or another process does not
            leave within a minute.
        FormatError: ``path`` is not a path.
        OSError: the file cannot be written.
    """
    name, number = checked_path(path), next(_traces)
    with recorder.recording() as record:
        yield
    mine, processes = jax.process_index(), jax.process_count()
    if mine:
        _publish(number, record.events)
        return
    events = [record.events, *(_fetched(number, other) for other in range(1, processes))]
    places = {int(device.id): i for i, device in enumerate(jax.devices())}
    whole = timeline(np.concatenate(events), places)
    content = json.dumps(whole, separators=(",", ":")).encode()
    write_bytes(name, gzip.compress(content, mtime=0) if name.endswith(".gz") else content)


def _publish(number: int, events: np.ndarray) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, events=events)
    text = base64.b85encode(file.getvalue()).decode()
    parts = [text[i : i + _PART] for i in range(0, len(text), _PART)]
    mine = jax.process_index()
    for i, part in enumerate(parts):
        jax_internals.publish(_KEY.format(number, mine, i), part)
    jax_internals.publish(_KEY.format(number, mine, "parts"), str(len(parts)))


def _fetched(number: int, process: int) -> np.ndarray:
    def fetch(part: int | str) -> str:
        found = jax_internals.fetch(_KEY.format(number, process, part), _SECONDS)
        if found is None:
            raise CollectiveError(
                f"process {process} did not leave trace_links within {_SECONDS:g} s of this one; "
                "all processes enter and leave it together"
            )
        return found

    text = "".join(fetch(part) for part in range(int(fetch("parts"))))
    jax_internals.discard(_KEY.format(number, process, ""))
    return np.load(io.BytesIO(base64.b85decode(text)))["events"].astype(COLUMNS)


def timeline(events: np.ndarray, places: Mapping[int, int]) -> dict[str, Any]:
    """The trace of recorded events, as Perfetto reads it.

    Args:
        events: the events of all processes, of dtype ``COLUMNS``.
        places: the places of devices among all devices, by their ids.
    """
    first = int(events["begun"].min(initial=2**62))
    found: list[dict[str, Any]] = []
    tracks: dict[tuple[int, str], int] = {}

    def add(device: int, track: str, name: str, span: tuple[float, float], **args: Any) -> None:
        if (device, track) not in tracks:
            tracks[device, track] = len(tracks)
            where = {"ph": "M", "pid": device, "tid": tracks[device, track]}
            found.append({**where, "name": "process_name", "args": {"name": f"device {device}"}})
            found.append({**where, "name": "thread_name", "args": {"name": track}})
        begin, end = span
        found.append({
            "ph": "X", "pid": device, "tid": tracks[device, track], "name": name,
            "ts": (begin - first) / 1e3, "dur": max(0.0, end - begin) / 1e3, "args": args,
        })  # fmt: skip

    tags = events[["program", "number", "count"]]
    for tag in np.unique(tags):
        of_call = events[tags == tag]
        plays = of_call[of_call["what"] == PLAYS]
        known = PROGRAMS.get(int(tag["program"]))
        name = f"{known[0].collective.kind}, {known[1]:g} B" if known else "a call"
        for play in plays:
            add(places[int(play["device"])], "calls", name, (play["begun"], play["ended"]),
                rank=int(play["rank"]), run=int(play["count"]))  # fmt: skip
        arrived = {
            (int(e["peer"]), int(e["device"]), int(e["message"])): int(e["ended"])
            for e in of_call[of_call["what"] == ARRIVES]
        }
        begun = int(plays["begun"].min(initial=2**62))
        expected = _predicted(int(tag["program"])) if len(plays) else {}
        for e in of_call[of_call["what"] == LEAVES]:
            ends = int(e["device"]), int(e["peer"])
            end = arrived.get((*ends, int(e["message"])), int(e["ended"]))
            device, peer, step = places[ends[0]], places[ends[1]], int(e["step"])
            said = {"step": step, "bytes": int(e["bytes"])}
            waited = (int(e["begun"]) - int(e["asked"])) / 1e6
            span = int(e["begun"]), end
            add(device, f"to {peer}", f"step {step}", span, **said, waited_ms=waited)
            times = expected.get((step, int(e["rank"]), int(e["peer_rank"])))
            if times is not None:
                span = begun + 1e9 * times[0], begun + 1e9 * times[1]
                add(device, f"to {peer}, predicted", f"step {step}", span, **said)
    return {"displayTimeUnit": "ms", "traceEvents": found}


def _predicted(program: int) -> Times:
    """Predicted seconds from a call's start at which each message leaves and arrives."""
    known = PROGRAMS.get(program)
    return {} if known is None else _simulated(*known)


@functools.lru_cache(maxsize=16)
def _simulated(schedule: Schedule, nbytes: float) -> Times:
    machine = costs_of("links")
    if not schedule.num_sends or machine is None:
        return {}
    run = simulate(schedule, nbytes, execution=machine)
    sent = run.schedule  # along the routes of the network between the processes
    last = run.hop_ptr[1:] - 1
    begin = run.clock.seconds(run.hop_start[run.hop_ptr[:-1]])
    end = run.clock.seconds(run.hop_start[last] + run.hop_delay[last])
    at = sent.message_ptr[:-1]
    keys = zip(sent.step[at].tolist(), sent.src[at].tolist(), sent.dst[at].tolist(), strict=True)
    found: Times = {}
    for key, b, e in zip(keys, begin.tolist(), end.tolist(), strict=True):
        before = found.get(key, (b, e))
        found[key] = min(b, before[0]), max(e, before[1])
    return found
