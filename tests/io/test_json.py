"""The library's JSON: exact round trips, the same bytes each time, files that are not trusted."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import Collective, Schedule, Topology, simulate, verify
from jaxcoll.errors import FormatError
from jaxcoll.io import dumps, loads
from jaxcoll.io.json import COLLECTIVE, TOPOLOGY
from jaxcoll.paths import Edges
from jaxcoll.prove import prove_text
from jaxcoll.schedule import Provenance
from jaxcoll.topologies import ring, torus
from tests import reference, strategies
from tests.elsewhere import printed_elsewhere
from tests.io.json_objects import NETWORKS, OBJECTS, VALUES, change


@given(OBJECTS)
def test_there_and_back(obj):
    text = dumps(obj)
    back: Any = loads(text)
    assert type(back) is type(obj)
    assert back == obj
    assert dumps(back) == text
    if not isinstance(obj, Collective):
        assert back.digest == obj.digest


@given(NETWORKS)
def test_descriptions_of_networks_are_kept(topology):
    back: Any = loads(dumps(topology))
    for name in ("name", "vertex_names", "grid", "placement", "generators"):
        assert getattr(back, name) == getattr(topology, name)
    for name in ("exact_bandwidth", "exact_alpha"):
        assert getattr(back, name) == getattr(topology, name)


def test_places_of_ranks_are_kept():
    moved = torus(2, 3).relabel([3, 0, 5, 1, 4, 2])
    back: Any = loads(dumps(moved))
    assert back == moved
    assert back.placement == moved.placement


@given(st.dictionaries(st.text(), VALUES, max_size=3), VALUES, st.none() | st.integers(0, 2**64))
def test_provenance_is_kept(parameters, certificate, seed):
    provenance = Provenance("some", parameters, seed, 0.125, {"claim": certificate})
    schedule = reference.synthesize(ring(3), Collective("all_gather", 3), 0)
    text = dumps(schedule.with_provenance(provenance))
    back: Any = loads(text)
    assert back.provenance == provenance
    assert dumps(loads(text)) == text


def test_numpy_values_and_lists_of_provenance_come_back_plain():
    given_ones = {"a": np.float64(0.5), "b": np.arange(2), "c": [1, (2,)], "d": np.bool_(True)}
    schedule = reference.synthesize(ring(3), Collective("all_gather", 3), 0)
    noted = schedule.with_provenance(Provenance("x", given_ones, np.int64(3)))  # type: ignore[arg-type]
    read: Any = loads(dumps(noted))
    back = read.provenance
    assert back.parameters == {"a": 0.5, "b": (0, 1), "c": (1, (2,)), "d": True}
    assert back.seed == 3


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, object(), {1: 2}, b"x", 1j, {"p/q": 3}, 10**2000, Fraction(1, 10**2000)],
)
def test_provenance_that_json_cannot_say_is_refused(value):
    schedule = reference.synthesize(ring(3), Collective("all_gather", 3), 0)
    with pytest.raises(FormatError, match=r"parameters\.deep\[0\]|digits"):
        dumps(schedule.with_provenance(Provenance("x", {"deep": [value]})))


def test_provenance_without_end_is_refused():
    endless: list = []
    endless.append(endless)
    schedule = reference.synthesize(ring(3), Collective("all_gather", 3), 0)
    with pytest.raises(FormatError, match="nested deeper"):
        dumps(schedule.with_provenance(Provenance("x", {"deep": endless})))


def test_rationals_are_strings_only_where_floats_are_inexact():
    speeds = [Fraction(299993, 24989), Fraction(1, 10), 50e9]
    topology = Topology(2, [0, 0, 1], [1, 1, 0], [0, 5e-7, 0], speeds)  # type: ignore[arg-type]
    data = json.loads(dumps(topology))
    assert data["bandwidth"] == ["299993/24989", 0.1, 50e9]
    assert data["alpha"] == [0.0, 5e-7, 0.0]
    back: Any = loads(dumps(topology))
    assert back.exact_bandwidth == tuple(map(Fraction, ("299993/24989", "0.1", 5 * 10**10)))


def test_what_it_looks_like():
    assert dumps(Collective("gather", 3, 2, ((2, 0),), 1)) == (
        '{\n"format": "jaxcoll.collective/1",\n"kind": "gather",\n"num_ranks": 3,\n'
        '"chunks_per_shard": 2,\n"groups": [[2,0]],\n"root": 1\n}\n'
    )
    assert json.loads(dumps(ring(2)))["format"] == "jaxcoll.topology/1"
    schedule = reference.synthesize(ring(2), Collective("all_reduce", 2), 0)
    data = json.loads(dumps(schedule))
    assert data["format"] == "jaxcoll.schedule/1"
    assert data["reduce"][0] == 1
    assert data["collective"]["groups"] is None


def test_fields_with_a_default_may_be_left_out():
    text = f'{{"format":"{TOPOLOGY}","num_ranks":2,"src":[0,1],"dst":[1,0],"alpha":[0,0],'
    topology = loads(text + '"bandwidth":["1/3",2]}')
    assert topology == Topology(2, [0, 1], [1, 0], [0, 0], [Fraction(1, 3), 2])  # type: ignore[arg-type]
    assert loads(f'{{"format":"{COLLECTIVE}","kind":"reduce","num_ranks":3}}') == (
        Collective("reduce", 3)
    )
    schedule = reference.synthesize(torus(2, 2), Collective("all_gather", 4), 0)
    assert loads(change(schedule, provenance=...)) == schedule


def test_the_same_bytes_in_every_process():
    code = (
        "from jaxcoll.collective import Collective as C; from jaxcoll.topologies import torus\n"
        "from tests.reference import synthesize; from jaxcoll.io import dumps\n"
        "print(dumps(synthesize(torus(2, 3), C('all_reduce', 6, 2, ((4, 0, 1), (2, 5))), 3)))"
    )
    told = printed_elsewhere(code)
    assert len(told) == 1
    assert isinstance(loads(told.pop()), Schedule)


# ---------------------------------------------------------------------- lists in another order


def in_another_order(text: str, shuffle) -> str:
    """A schedule's file with its links and its edges listed otherwise, and all numbers of them."""
    data = json.loads(text)
    network, edges = data["topology"], data["edges"]
    links, paths = list(range(len(network["src"]))), list(range(len(edges["src"])))
    shuffle(links)
    shuffle(paths)
    for key in ("src", "dst", "alpha", "bandwidth"):
        network[key] = [network[key][link] for link in links]
    ptr, path = edges["path_ptr"], [links.index(link) for link in edges["path_link"]]
    ways = [path[ptr[edge] : ptr[edge + 1]] for edge in paths]
    for key in ("src", "dst"):
        edges[key] = [edges[key][edge] for edge in paths]
    edges["path_ptr"] = [0, *itertools.accumulate(map(len, ways))]
    edges["path_link"] = [link for way in ways for link in way]
    data["edge"] = [paths.index(edge) for edge in data["edge"]]
    return json.dumps(data)


NETWORKS_OF_SCHEDULES = strategies.topologies(max_ranks=5, switches=True, exact=True)


@given(strategies.schedules(networks=NETWORKS_OF_SCHEDULES), st.randoms(use_true_random=False))
def test_lists_in_another_order_are_the_same_schedule(schedule, random):
    text = in_another_order(dumps(schedule), random.shuffle)
    read: Any = loads(text)
    verify(read)
    assert simulate(read, 1000).time == simulate(schedule, 1000).time
    assert prove_text(text) == prove_text(dumps(schedule))
    links = zip(*(getattr(schedule.topology, k).tolist() for k in ("src", "dst")), strict=True)
    if len(set(links)) == schedule.topology.num_links:  # else a number says which
        assert read == schedule


def test_a_ring_whose_unequal_links_are_listed_otherwise_takes_as_long():
    """Of the two links out of rank 0 one is five times as fast, and the fast one is used."""
    columns: Any = ([0, 0, 1, 1], [1, 1, 0, 0], [0.0] * 4, [1e9, 5e9, 1e9, 5e9])
    fast = Topology(2, *columns)
    edges = Edges.from_paths(fast, [[1], [3]])
    sends = Schedule.from_sends(
        fast, Collective("all_gather", 2), [0, 0], [0, 1], [0, 1], edges=edges
    )
    data = json.loads(dumps(sends))
    for column in (data["topology"]["bandwidth"],):
        column[:] = [column[i] for i in (1, 0, 3, 2)]
    data["edges"]["path_link"] = [0, 2]
    read: Any = loads(json.dumps(data))
    assert read == sends
    assert simulate(read, 10**7).time == pytest.approx(1e-3)
    data["edges"]["path_link"] = [2, 0]
    with pytest.raises(FormatError, match="broken path"):
        loads(json.dumps(data))
