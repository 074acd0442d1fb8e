"""Deadlines: the fastest schedule by then, or a refusal at once; and progress without asking."""

from __future__ import annotations

import time

import pytest

from jaxcoll import bound, progress, topologies
from jaxcoll.errors import CollectiveError
from jaxcoll.synth import ForestColl, auto, synthesize


def test_a_deadline_far_away_changes_nothing():
    topology = topologies.torus(3, 3)
    found = synthesize(topology, "all_reduce", nbytes=2**20)
    assert synthesize(topology, "all_reduce", nbytes=2**20, deadline=1e6) == found


def test_candidates_that_would_end_too_late_are_left_out(monkeypatch):
    # Of a send that takes so long only the schedules of fewest sends are made in time.
    topology = topologies.torus(4, 4)
    everything = synthesize(topology, "all_gather", nbytes=2**26)
    monkeypatch.setattr(auto, "_SEND_SECONDS", 0.1)
    found = synthesize(topology, "all_gather", nbytes=2**26, deadline=40)
    assert "left until the deadline" in str(found.provenance.certificate["table"])
    assert "deadline" not in str(everything.provenance.certificate["table"])


@pytest.mark.parametrize("name", ["auto", "tacos", "ring"])
@pytest.mark.parametrize("chunks", [None, 4])
@pytest.mark.slow_members("4-auto")
def test_a_deadline_that_is_too_short_says_what_would_do(name, chunks):
    topology = topologies.torus(16, 16)
    began = time.process_time()
    with pytest.raises(
        CollectiveError, match=r"takes about .* s, after .* s; give deadline= of (.*) s or more"
    ) as at:
        synthesize(topology, "all_gather", name, chunks=chunks, nbytes=2**20, deadline=1e-9)
    assert time.process_time() - began < 5
    assert "\n" not in str(at.value)
    enough = float(str(at.value).split("deadline= of ")[1].split(" s or")[0])
    assert synthesize(
        topology, "all_gather", name, chunks=chunks, nbytes=2**20, deadline=max(enough, 10)
    )


def test_the_first_schedule_may_take_as_long_again_as_the_deadline(monkeypatch):
    """So what a refusal names also suffices on a machine that is three times as slow by then."""
    topology, now, seconds = topologies.dgx_h100(2), [0.0], [1.0]

    def slow(*given, **more):
        now[0] += seconds[0]
        return bound(*given, **more)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("jaxcoll.synth.auto.bound", slow)
    with pytest.raises(CollectiveError, match=r"give deadline= of (.*) s or more") as refused:
        synthesize(topology, "all_gather", nbytes=2**20, deadline=0.1)
    enough = float(str(refused.value).split("deadline= of ")[1].split(" s or")[0])
    now[0], seconds[0] = 0.0, 3.0
    assert synthesize(topology, "all_gather", nbytes=2**20, deadline=enough).num_sends


def test_after_the_deadline_no_synthesizer_is_asked_for_its_counts_of_chunks(monkeypatch):
    """On a fat tree of 4,096 ranks one took a minute to answer, when half a second was given."""

    def chunk_counts(self, problem):
        raise RuntimeError("asked too late")

    monkeypatch.setattr(ForestColl, "chunk_counts", chunk_counts)
    topology = topologies.fat_tree(2, 3)
    with pytest.raises(CollectiveError, match="no schedule by the deadline"):
        synthesize(topology, "all_to_all", deadline=1e-9)
    with pytest.raises(RuntimeError, match="asked too late"):
        synthesize(topology, "all_to_all", deadline=1e3)


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), float("inf"), "soon"])
def test_deadlines_are_seconds_above_0(deadline):
    with pytest.raises(CollectiveError, match="deadline must be a finite number above 0"):
        synthesize(topologies.ring(4), "all_gather", deadline=deadline)


def test_a_long_search_says_so_unasked(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_LONG", 0.0)
    monkeypatch.setattr(progress, "_AGAIN", 0.001)
    few, many = topologies.ring(8), topologies.ring(129)
    synthesize(few, "all_gather", "ring", chunks=1)
    synthesize(many, "all_gather", "ring", chunks=1, progress=False)
    assert capsys.readouterr().err == ""
    synthesize(many, "all_gather", "ring", chunks=1)
    assert "synthesizing all_gather of 129 ranks (0 s)" in capsys.readouterr().err
