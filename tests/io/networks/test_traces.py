"""Traces of timelines for Perfetto."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest

import jaxcoll as jc
from jaxcoll.io import traces
from tests.cli.calls import called


@pytest.mark.parametrize("topology", [jc.topologies.torus(2, 3), jc.topologies.dgx_h100(2)])
def test_messages_stand_on_the_track_of_their_link_and_do_not_overlap(topology, tmp_path: Path):
    schedule = jc.synthesize(topology, "all_reduce", "tacos", chunks=2)
    timeline = jc.simulate(schedule, 64e6)
    found = json.loads(traces.dumps(timeline))
    events = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(timeline.hop_link)
    assert found["otherData"] == {"model": "astra", "order": "links", "seconds": timeline.time}
    last = max(event["ts"] + event["dur"] for event in events)
    assert last <= timeline.time * 1e6 + 1e-3
    moved = sum(event["args"]["bytes"] for event in events)
    per_chunk = 64e6 / schedule.collective.num_chunks
    hops = sum(len(schedule.edges.path(int(e))) for e in schedule.edge)
    assert moved == pytest.approx(per_chunk * hops)
    by_track: dict[int, list] = {}
    for event in events:
        assert event["pid"] == topology.src[event["tid"]]
        by_track.setdefault(event["tid"], []).append(event)
    for track in by_track.values():
        for before, after in itertools.pairwise(track):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-9
    traces.save(tmp_path / "t.json.gz", timeline)
    assert json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes())) == found


def test_a_command_writes_a_trace(capsys, tmp_path: Path):
    jc.io.save(tmp_path / "s.json", jc.synthesize(jc.topologies.ring(4), "all_reduce", "ring"))
    arguments = ("simulate", tmp_path / "s.json", "--size", "1MiB", "--trace", tmp_path / "t.json")
    assert called(capsys, *arguments)[0] == 0
    assert json.loads((tmp_path / "t.json").read_text())["displayTimeUnit"] == "ns"
