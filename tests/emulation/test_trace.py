"""Traces of links: every message of every rank, beside its prediction; and who is late."""

from __future__ import annotations

import gzip
import json
import re
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll import topologies
from jaxcoll.emulation import emulate
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.links import engine
from jaxcoll.execute.links.recorder import ARRIVES, COLUMNS, LEAVES, PLAYS
from jaxcoll.execute.links.trace import timeline, trace_links
from tests.emulation.test_emulation import needs_namespaces
from tests.execute.lowerings.player import is_compiled
from tests.execute.meshes.xla_flags import cpu_devices

WORKER = str(Path(__file__).with_name("trace_worker.py"))
RANKS = 3


@needs_namespaces
@pytest.mark.skipif(not is_compiled(), reason="needs a C++ compiler")
def test_a_trace_has_every_message_beside_its_prediction(tmp_path, capfd):
    path = tmp_path / "trace.json.gz"
    ring = topologies.ring(RANKS, alpha=0, bandwidth=2e6)
    command = [sys.executable, WORKER, str(path)]
    assert emulate(ring, command, environment={"XLA_FLAGS": cpu_devices(1)}) == 0
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    whole = [e for e in events if e["ph"] == "X"]
    assert {e["pid"] for e in whole} == set(range(RANKS))
    calls = [e for e in whole if tracks[e["pid"], e["tid"]] == "calls"]
    assert [e["name"] for e in calls] == ["all_reduce, 160008 B"] * 2 * RANKS
    predicted = [e for e in whole if tracks[e["pid"], e["tid"]].endswith("predicted")]
    sent = [e for e in whole if tracks[e["pid"], e["tid"]].startswith("to ")]
    schedule = jc.synthesize(ring, "all_reduce", "ring", nbytes=1e6)
    assert len(sent) == 2 * len(predicted) == 2 * 2 * schedule.num_messages
    for e in predicted:
        assert e["dur"] == pytest.approx(e["args"]["bytes"] / 2, rel=0.01)
    assert statistics.median(e["dur"] / e["args"]["bytes"] for e in sent) > 0.45
    late = dict(re.findall(r"^\[(\d)\] late (\S+) ", capfd.readouterr().out, re.M))
    assert float(late.pop("2")) > 1.0
    assert all(float(seconds) < 0.6 for seconds in late.values())


def test_a_trace_without_predictions_has_what_was_sent():
    rows = [
        (LEAVES, 7, 0, 1, 0, 1, 4, 5, 0, 3, 800, 1000, 2000, 5000),
        (ARRIVES, 7, 0, 1, 1, 0, 5, 4, 0, 3, 800, 2500, 2500, 9000),
        (PLAYS, 7, 0, 1, 0, 0, 4, 4, 0, 0, 0, 1000, 1000, 9500),
        (PLAYS, 7, 0, 1, 1, 1, 5, 5, 0, 0, 0, 1500, 1500, 9600),
    ]
    found = timeline(np.array(rows, COLUMNS), {4: 0, 5: 1})["traceEvents"]
    (message,) = [e for e in found if e["name"] == "step 3"]
    assert (message["pid"], message["ts"], message["dur"]) == (0, 1.0, 7.0)
    assert message["args"] == {"step": 3, "bytes": 800, "waited_ms": 0.001}
    assert timeline(np.empty(0, COLUMNS), {})["traceEvents"] == []


def test_who_is_late_is_said_where_it_matters():
    assert engine.late_text(0.9, 3, 2) == ""
    said = engine.late_text(2.04, 12, 2)
    assert said == "process 2 kept the others waiting for 2.0 of 10 s, in 12 calls over links"


def test_without_the_player_there_is_no_trace(monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "library", lambda: "its player is not compiled")
    trace = trace_links(tmp_path / "trace.json")
    with pytest.raises(CollectiveError, match="cannot be recorded here: its player is not"), trace:
        pass
    assert not list(tmp_path.iterdir())
