"""Schedules by orbits, proved by the checker that shares nothing with the verifier."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll import io
from jaxcoll.prove import NotProved, NotRead, prove_text

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
NETWORKS = st.one_of(
    st.lists(st.integers(2, 4), min_size=1, max_size=3).map(lambda s: jc.topologies.torus(*s)),
    st.builds(jc.topologies.multi_rail, st.integers(2, 4), st.integers(2, 3)),
    st.builds(jc.topologies.switch, st.integers(2, 6)),
    st.builds(jc.topologies.hypercube, st.integers(1, 4)),
)


@given(NETWORKS, st.sampled_from(KINDS), st.integers(1, 3))
def test_the_shard_of_one_proves_what_all_sends_prove(network, kind, chunks):
    orbit = jc.synthesize_orbit(network, kind, chunks=chunks)
    proof, whole = prove_text(io.dumps(orbit), kind), prove_text(io.dumps(orbit.expand()))
    assert proof.format == "jaxcoll.orbit-schedule/1"
    assert proof[1:5] == whole[1:5]
    assert set(whole.shown) < set(proof.shown)


def test_a_schedule_of_thousands_is_proved_without_listing_it():
    orbit = jc.synthesize_orbit(jc.topologies.torus(16, 16, 8), "all_to_all", chunks=1)
    assert prove_text(io.dumps(orbit)).messages == orbit.num_sends > 2**24


def written(network: jc.Topology, kind: str, generators: Any, maker: str = "direct") -> str:
    """A file of generators and of rank 0's part, made by a synthesizer that knows neither."""
    one = jc.orbits.shard_of_one(kind, network.num_ranks, 1)
    orbit = json.loads(io.dumps(jc.synthesize(network, one, maker)))
    form = "jaxcoll.orbit-schedule/1"
    return json.dumps({"format": form, "translations": generators, "orbit": orbit})


FULL = jc.topologies.fully_connected(4)
_ENDS: Any = ([0, 1, 2, 3, 3], [2, 2, 3, 0, 1])
_SPEEDS: Any = ([1e-6] * 5, [10**9] * 5)
# Two ranks whose only way to each other is one link between two switches.
DUMBBELL = jc.Topology(2, *_ENDS, *_SPEEDS, num_vertices=4)
_ROUND: Any = ([0, 1, 2], [1, 2, 0], [1e-6] * 3, [10**9] * 3)
ONE_WAY = jc.Topology(3, *_ROUND)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (written(FULL, "all_gather", [[1, 2, 3, 0]]), None, ""),
        (written(FULL, "all_gather", [[1, 0, 3, 2], [2, 3, 0, 1]]), None, ""),
        (written(FULL, "all_gather", [[1, 2, 3, 0]] * 30_000), NotProved,
         "30000 generators are too many for 4 ranks"),
        (written(ONE_WAY, "all_to_all", [[1, 2, 0]], "tacos"), None, ""),
        (written(FULL, "all_gather", [[1, 1, 3, 0]]), NotProved, "generator 0 does not map"),
        (written(FULL, "all_gather", [[1, 2, 3]]), NotProved, "generator 0 does not map"),
        (written(ONE_WAY, "all_gather", [[0, 2, 1]], "tacos"), NotProved, "0 does not map"),
        (written(FULL, "all_gather", [[1, 2, 0, 3]]), NotProved, r"orders \[3\] are not 4"),
        (written(FULL, "all_gather", [[1, 0, 2, 3], [2, 1, 0, 3]]), NotProved, "do not commute"),
        (written(FULL, "all_gather", [[1, 0, 3, 2]] * 2), NotProved, "rank 0 to rank 2"),
        (written(DUMBBELL, "all_gather", [[1, 0, 2, 3]]), NotProved, "leaves a link of edge"),
        (written(ONE_WAY, "all_to_all", [[1, 2, 0]]), NotProved, "two links of one orbit"),
        (written(FULL, "all_gather", [[1.5]]), NotRead, "must be an integer"),
        (written(FULL, "all_gather", 3), NotRead, "must be a list"),
        (written(FULL, "all_gather", []).replace("schedule/1", "schedule/2"), NotRead, "must be"),
        (written(FULL, "all_gather", [[1, 2, 3, 0]]).replace('"root": 0', '"root": 1'),
         NotRead, "of rank 0's shard"),
    ],
)  # fmt: skip
def test_what_is_no_orbit_is_refused_and_by_the_loader_too(text, error, message):
    if error is None:
        found = io.loads(text)
        assert isinstance(found, jc.Schedule)
        jc.verify(found)
        prove_text(text)
        return
    with pytest.raises(error, match=message):
        prove_text(text)
    with pytest.raises(jc.errors.FormatError):
        io.loads(text)


def test_a_part_that_does_not_arrive_is_named():
    said = json.loads(written(FULL, "all_gather", [[1, 2, 3, 0]]))
    orbit = said["orbit"]
    for column in ("edge", "chunk", "reduce"):
        orbit[column].pop()
    orbit["step_ptr"][-1] -= 1
    with pytest.raises(NotProved, match="never receives chunk 0"):
        prove_text(json.dumps(said))
