"""The library's JSON: exact round trips, the same bytes each time, files that are not trusted."""

from __future__ import annotations

import json
import math
import os
import random
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll.io.files
from jaxcoll import (
    Collective,
    FormatError,
    JaxcollError,
    Provenance,
    Schedule,
    ScheduleError,
    Topology,
    TopologyError,
)
from jaxcoll.io import dumps, load, loads, save
from jaxcoll.io.json import COLLECTIVE, SCHEDULE, TOPOLOGY
from jaxcoll.topologies import ring, switch, torus
from tests import reference, strategies
from tests.elsewhere import printed_elsewhere

NETWORKS = (
    strategies.topologies(min_ranks=1, switches=True, exact=True)
    | strategies.grids()
    | strategies.families()
)
OBJECTS = (
    NETWORKS
    | st.integers(1, 8).flatmap(lambda n: strategies.collectives(n))
    | strategies.schedules(networks=strategies.topologies(max_ranks=6, switches=True, exact=True))
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.fractions(),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def change(obj, **fields) -> str:
    """The JSON of an object with some fields replaced (or, by None of ``...``, removed)."""
    data = json.loads(dumps(obj))
    for path, value in fields.items():
        at, *rest = path.split("__")
        inner = data
        while rest:
            inner, at, *rest = inner[at], *rest
        if value is ...:
            del inner[at]
        else:
            inner[at] = value
    return json.dumps(data)


# ---------------------------------------------------------------------- there and back


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


# ---------------------------------------------------------------------- files


@settings(max_examples=15)
@given(obj=OBJECTS)
def test_files_there_and_back(tmp_path_factory, obj):
    path = tmp_path_factory.mktemp("json") / "x.json"
    save(path, obj)
    assert path.read_bytes() == dumps(obj).encode()
    assert load(path) == load(str(path)) == obj
    save(path, ring(3))
    assert load(path) == ring(3)
    assert os.listdir(path.parent) == ["x.json"]


class Stop(BaseException):
    """As an interrupt is."""


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), Stop()])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, call, error):
    path = tmp_path / "x.json"
    save(path, ring(3))

    def fail(*_):
        raise error

    monkeypatch.setattr(jaxcoll.io.files.os, call, fail)
    with pytest.raises(type(error)):
        save(path, ring(4))
    with pytest.raises(type(error)):
        save(tmp_path / "new.json", ring(4))
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["x.json"]
    assert load(path) == ring(3)


def test_what_cannot_be_written_touches_no_file(tmp_path):
    with pytest.raises(FormatError, match="expected a Topology, Collective or Schedule, got dict"):
        save(tmp_path / "x.json", {})  # type: ignore[arg-type]
    assert not os.listdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "nowhere" / "x.json", ring(3))


def test_new_files_have_the_usual_rights(tmp_path):
    (tmp_path / "other").touch()
    save(tmp_path / "x.json", ring(3))
    assert (tmp_path / "x.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_large_files_are_refused_unread(tmp_path):
    path = tmp_path / "x.json"
    save(path, ring(3))
    size = path.stat().st_size
    assert load(path, max_bytes=size) == ring(3)
    with pytest.raises(FormatError, match=rf"x\.json has more than the {size - 1} bytes"):
        load(path, max_bytes=size - 1)
    with pytest.raises(FormatError, match="/dev/zero has more than the 1000 bytes"):
        load("/dev/zero", max_bytes=1000)


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(change(ring(3), src=[0, 0]))
    with pytest.raises(FormatError, match=re.escape(str(path))) as caught:
        load(path)
    assert isinstance(caught.value.__cause__, TopologyError)
    path.write_bytes(b'{"format": "\xff"}')
    with pytest.raises(FormatError, match=r"x\.json is not UTF-8"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.json")


# ---------------------------------------------------------------------- files that are not trusted

BAD_TEXT = [
    ("", "not JSON, or cut short"),
    ("{", "not JSON, or cut short"),
    ("\ufeff{}", "not JSON|BOM"),
    ("[]", 'with a "format", .* got a list of 0'),
    ("3", 'with a "format", .* got 3'),
    ("null", 'with a "format", .* got None'),
    ("{}", 'with a "format", .* got an object of 0'),
    ('{"format": 3}', '"format" is 3; this version reads'),
    ('{"format": ["jaxcoll.topology/1"]}', '"format" is a list of 1'),
    ('{"format": "jaxcoll.topology/2"}', "'jaxcoll.topology/2'; this version reads .*/1"),
    ('{"format": "msccl"}', "'msccl'; this version reads"),
    ('{"format": "x", "format": "y"}', "the key 'format' is given twice"),
    ('{"a": NaN}', "NaN is not a number in JSON"),
    ('{"a": -Infinity}', "-Infinity is not a number in JSON"),
    ('{"a": ' + "9" * 5000 + "}", "not JSON that is read here"),
    ("[" * 100_000, "nested deeper"),
    ('{"a":' * 100_000, "nested deeper"),
    (dumps(ring(3)) + "{}", "not JSON, or cut short: Extra data"),
]


@pytest.mark.parametrize(("text", "match"), BAD_TEXT, ids=range(len(BAD_TEXT)))
def test_bad_text_is_refused(text, match):
    with pytest.raises(FormatError, match=match):
        loads(text)


@pytest.mark.parametrize("text", [b"{}", None, 3])
def test_what_is_no_text_is_refused(text):
    with pytest.raises(FormatError, match="expected JSON text"):
        loads(text)


RING = ring(3)
GATHER = Collective("gather", 3, 2, ((2, 0),), 1)
SCHEDULE_3 = reference.synthesize(RING, Collective("all_gather", 3), 0)

BAD_FIELDS = [
    (RING, {"src": ...}, r"topology\.src is missing"),
    (RING, {"colour": 3}, r"topology has no field 'colour'; remove it"),
    (RING, {"num_ranks": "3"}, r"topology\.num_ranks must be an integer from 1 .* got '3'"),
    (RING, {"num_ranks": True}, r"topology\.num_ranks must be an integer .* got True"),
    (RING, {"num_ranks": 3.0}, r"topology\.num_ranks must be an integer .* got 3.0"),
    (RING, {"num_ranks": 0}, r"topology\.num_ranks must be an integer from 1 "),
    (RING, {"num_ranks": 10**12}, r"topology\.num_ranks must be an integer from 1 to 65548"),
    (RING, {"num_vertices": 2}, r"topology\.num_vertices must be an integer from 3"),
    (RING, {"num_vertices": 10**12}, r"topology\.num_vertices must be an integer from 3"),
    (RING, {"src": "012"}, r"topology\.src must be a list, got '012'"),
    (RING, {"src": [0, 1.0]}, r"topology\.src\[1\] must be an integer, got 1.0"),
    (RING, {"src": [0, True]}, r"topology\.src\[1\] must be an integer, got True"),
    (RING, {"src": [0, None]}, r"topology\.src\[1\] must be an integer, got None"),
    (RING, {"src": [0, -1]}, r"topology\.src\[1\] must be an integer from 0 .* got -1"),
    (RING, {"dst": [0, 2**31]}, r"topology\.dst\[1\] must be an integer from 0 to 2147483647"),
    (RING, {"dst": [0, 2**80]}, r"topology\.dst\[1\] must be an integer from 0"),
    (RING, {"alpha": ["0/1"] * 6}, r"topology\.alpha\[0\] must be a number, got '0/1'"),
    (RING, {"alpha": [10**400] * 6}, r"topology\.alpha\[0\] must be a finite number"),
    (RING, {"bandwidth": ["1e3"] * 6}, r'topology\.bandwidth\[0\] .* "p/q" .* got \'1e3\''),
    (RING, {"bandwidth": ["1/0"] * 6}, r'bandwidth\[0\] .* "p/q"'),
    (RING, {"bandwidth": ["-1/2"] * 6}, r'bandwidth\[0\] .* "p/q"'),
    (RING, {"bandwidth": [" 1/2"] * 6}, r'bandwidth\[0\] .* "p/q"'),
    (RING, {"bandwidth": ["1/" + "2" * 1001] * 6}, r'bandwidth\[0\] .* "p/q"'),
    (RING, {"bandwidth": ["\u0661/2"] * 6}, r'bandwidth\[0\] .* "p/q"'),
    (RING, {"bandwidth": [None] * 6}, r"bandwidth\[0\] must be a number, got None"),
    (RING, {"bandwidth": [True] * 6}, r"bandwidth\[0\] must be a number, got True"),
    (RING, {"name": 3}, r"topology\.name must be a string, got 3"),
    (RING, {"vertex_names": ["a", 1, "c"]}, r"topology\.vertex_names\[1\] must be a string"),
    (RING, {"grid": []}, r"topology\.grid must be an object, got a list of 0"),
    (RING, {"grid": {"shape": [3]}}, r"topology\.grid\.wrap is missing"),
    (RING, {"grid__wrap": [1]}, r"topology\.grid\.wrap\[0\] must be true or false, got 1"),
    (RING, {"grid__shape": [0]}, r"topology\.grid\.shape\[0\] must be an integer from 1"),
    (RING, {"generators": [[0, 1, "2"]]}, r"topology\.generators\[0\]\[2\] must be an integer"),
    (RING, {"generators": [3]}, r"topology\.generators\[0\] must be a list, got 3"),
    (GATHER, {"kind": ["gather"]}, r"collective\.kind must be a string"),
    (GATHER, {"num_ranks": 10**9}, r"collective\.num_ranks must be an integer from 1"),
    (GATHER, {"groups": [0, 1]}, r"collective\.groups\[0\] must be a list, got 0"),
    (GATHER, {"groups": [[0.5]]}, r"collective\.groups\[0\]\[0\] must be an integer, got 0.5"),
    (GATHER, {"root": "0"}, r"collective\.root must be an integer from 0"),
    (GATHER, {"chunks_per_shard": 0}, r"collective\.chunks_per_shard must be an integer from 1"),
    (SCHEDULE_3, {"topology": None}, r"schedule\.topology must be an object, got None"),
    (SCHEDULE_3, {"topology__format": SCHEDULE}, rf"topology\.format must be '{TOPOLOGY}'"),
    (SCHEDULE_3, {"topology__format": ...}, r"topology\.format is missing"),
    (SCHEDULE_3, {"collective__kind": ...}, r"schedule\.collective\.kind is missing"),
    (SCHEDULE_3, {"edges__path_ptr": ...}, r"schedule\.edges\.path_ptr is missing"),
    (SCHEDULE_3, {"reduce": [2]}, r"schedule\.reduce\[0\] must be an integer from 0 to 1, got 2"),
    (SCHEDULE_3, {"reduce": [False]}, r"schedule\.reduce\[0\] must be an integer, got False"),
    (SCHEDULE_3, {"step_ptr": [0, 2**63]}, r"schedule\.step_ptr\[1\] must be an integer from 0"),
    (SCHEDULE_3, {"provenance": 3}, r"schedule\.provenance must be an object, got 3"),
    (SCHEDULE_3, {"provenance__seed": 0.5}, r"provenance\.seed must be an integer"),
    (SCHEDULE_3, {"provenance__parameters": []}, r"provenance\.parameters must be an object"),
    (SCHEDULE_3, {"provenance__parameters__order": {"p/q": "x"}}, r'order must .* "p/q"'),
    (SCHEDULE_3, {"provenance__parameters__order": {"p/q": 3}}, "order must be a string"),
]


@pytest.mark.parametrize(("obj", "fields", "match"), BAD_FIELDS)
def test_bad_fields_are_refused(obj, fields, match):
    with pytest.raises(FormatError, match=match):
        loads(change(obj, **fields))


REFUSED = [
    (RING, {"src": [0, 0]}, "one value per link", TopologyError),
    (RING, {"alpha": [-1] * 6}, "alpha -1.0 s", TopologyError),
    (RING, {"bandwidth": ["0/1"] * 6}, "above 0", TopologyError),
    (RING, {"vertex_names": ["a"]}, "one name for each", TopologyError),
    (RING, {"grid__shape": [4]}, "has 4 ranks", TopologyError),
    (RING, {"grid__ranks": [0, 1]}, "one rank for each of the 3 places", TopologyError),
    (RING, {"grid__shape": [3, 1]}, "one flag per dimension", TopologyError),
    (RING, {"generators": [[0, 0, 1]]}, "permutation", TopologyError),
    (RING, {"src": [], "dst": [], "alpha": [], "bandwidth": []}, "no path", TopologyError),
    (RING, {"num_ranks": 2**16, "num_vertices": 2**16}, "no path|has 3 ranks", TopologyError),
    (GATHER, {"kind": "gathr"}, "unknown collective 'gathr'", JaxcollError),
    (GATHER, {"groups": [[0, 0]]}, "rank 0 is in more than one place", JaxcollError),
    (GATHER, {"root": 2}, "index in every group", JaxcollError),
    (GATHER, {"chunks_per_shard": 2**31 - 1}, "more than the 2", JaxcollError),
    (SCHEDULE_3, {"chunk": [9]}, "one value per send", ScheduleError),
    (SCHEDULE_3, {"edges__path_link": [5, 5, 5, 5, 5, 5]}, "broken path", ScheduleError),
    (SCHEDULE_3, {"collective__num_ranks": 2}, "has 3 ranks, the collective 2", ScheduleError),
    (SCHEDULE_3, {"topology__src": []}, "one value per link", TopologyError),
]


@pytest.mark.parametrize(("obj", "fields", "match", "cause"), REFUSED)
def test_refused_content_names_its_cause(obj, fields, match, cause):
    with pytest.raises(FormatError, match=match) as caught:
        loads(change(obj, **fields))
    assert isinstance(caught.value.__cause__, cause)
    assert not isinstance(caught.value.__cause__, FormatError)


def test_infinity_by_overflow_is_refused():
    for field, text in (("alpha", dumps(RING)), ("bandwidth", dumps(RING))):
        at = text.index(f'"{field}": [') + len(f'"{field}": [')
        with pytest.raises(FormatError, match=rf"topology\.{field}\[0\] must be a finite number"):
            loads(text[:at] + "1e999," + text[at:])
    text = dumps(SCHEDULE_3).replace('"seconds":0.25', '"seconds":1e999')
    with pytest.raises(FormatError, match=r"provenance\.seconds must be a finite number"):
        loads(text)
    text = dumps(SCHEDULE_3).replace('["random",1]', '["random",1e999]')
    with pytest.raises(FormatError, match=r"parameters\.order\[1\] must be a finite number"):
        loads(text)


def test_a_small_file_cannot_ask_for_much_memory():
    """Many short paths and one long one: as a table of paths they would fill gigabytes."""
    n = 30_000
    edges = {
        "src": [0] * n,
        "dst": [1] * n,
        "path_ptr": [*range(n), 2 * n],
        "path_link": [0] * 2 * n,
    }
    with pytest.raises(FormatError, match=r"edge 29999 .* broken path"):
        loads(change(SCHEDULE_3, edges=edges))


def test_files_cut_short_are_refused():
    for obj in (RING, GATHER, SCHEDULE_3, switch(3)):
        text = dumps(obj)
        for length in range(0, len(text.rstrip()), 7):
            with pytest.raises(FormatError):
                loads(text[:length])


PIECES = [
    "0",
    "1",
    "-1",
    "[",
    "]",
    "{",
    "}",
    ",",
    '"',
    ":",
    "null",
    "true",
    "1e999",
    "NaN",
    "9" * 30,
]
PIECES += ["[]", "{}", '""', "0.5", "\\", "\u0000", "\U0001f600", "2147483648", '"1/3"', '"p/q"']


@pytest.mark.parametrize("seed", range(12))
def test_mangled_text_is_refused_or_read(seed):
    rng = random.Random(seed)
    obj = rng.choice([RING, GATHER, SCHEDULE_3, switch(3), torus(2, 2)])
    text = dumps(obj)
    spots = [
        match.span() for match in re.finditer(r'-?\d+(?:\.\d+)?|"[^"]*"|\[|\]|\{|\}|,|:', text)
    ]
    for _ in range(150):
        mangled = text
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            first, last = rng.choice(spots)
            how = rng.randrange(5)
            if how == 0:
                mangled = mangled[:first] + mangled[last:]
            elif how == 1:
                mangled = mangled[:first] + rng.choice(PIECES) + mangled[last:]
            elif how == 2:
                mangled = mangled[:first] + rng.choice(PIECES) + mangled[first:]
            elif how == 3:
                a, b = (
                    sorted(rng.sample(range(len(mangled) + 1), 2)) if len(mangled) > 1 else (0, 0)
                )
                mangled = mangled[:a] + mangled[b:]
            else:
                other = rng.choice(spots)
                mangled = mangled[:first] + text[slice(*other)] + mangled[last:]
        try:
            read = loads(mangled)
        except FormatError:
            continue
        assert isinstance(read, (Topology, Collective, Schedule))
        assert loads(dumps(read)) == read


@given(st.text(max_size=40) | VALUES.map(lambda value: json.dumps(value, default=str)))
def test_any_text_is_refused(text):
    with pytest.raises(FormatError):
        loads(text)


@given(st.data())
def test_any_value_in_any_place_is_refused_or_read(data):
    """A valid file in which one value, however deep, is another."""
    tree = json.loads(dumps(data.draw(st.sampled_from([RING, GATHER, SCHEDULE_3, switch(2)]))))
    at, steps = tree, data.draw(st.integers(1, 4))
    for step in range(steps):
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if step == steps - 1 or not isinstance(at[key], (dict, list)) or not at[key]:
            at[key] = json.loads(json.dumps(data.draw(VALUES), default=str))
            break
        at = at[key]
    try:
        read = loads(json.dumps(tree))
    except FormatError:
        return
    assert isinstance(read, (Topology, Collective, Schedule))
