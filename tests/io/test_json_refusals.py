"""JSON of no valid object: refused with one sentence that names the cause."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import Collective, JaxcollError, Schedule, Topology
from jaxcoll.errors import FormatError, ScheduleError, TopologyError
from jaxcoll.io import dumps, loads
from jaxcoll.io.json import SCHEDULE, TOPOLOGY
from jaxcoll.topologies import ring, switch, torus
from tests import reference
from tests.io.json_objects import VALUES, change

BAD_TEXT = [
    ("", "not JSON, or cut short"),
    ("{", "not JSON, or cut short"),
    ("\ufeff{}", "got an object of 0"),  # a mark that some editors write
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
        with pytest.raises(FormatError, match="'1e999' is larger than any float"):
            loads(text[:at] + "1e999," + text[at:])
    text = dumps(SCHEDULE_3).replace('"seconds":0.25', '"seconds":1e999')
    with pytest.raises(FormatError, match=r"'1e999' is larger than any float"):
        loads(text)
    text = dumps(SCHEDULE_3).replace('["random",1]', '["random",1e999]')
    with pytest.raises(FormatError, match=r"'1e999' is larger than any float"):
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
