"""The JSON Schema of the files of this library, held against the writer and the reader."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings

import jaxcoll as jc
from jaxcoll import io
from jaxcoll.errors import FormatError
from tests.io.json_objects import OBJECTS
from tests.io.mutations import mutated_json
from tests.misuse import TIMES

jsonschema = pytest.importorskip("jsonschema")
PATH = Path(__file__).parents[3] / "docs" / "extra" / "schemas" / "jaxcoll-1.json"
VALIDATOR = jsonschema.Draft202012Validator(json.loads(PATH.read_text()))
SCHEDULE = jc.synthesize(jc.topologies.switch(3), "broadcast", chunks=2, root=1, nbytes=1e6)
SAMPLES = {
    "schedule": io.dumps(SCHEDULE),
    "topology": io.dumps(jc.topologies.torus(2, 3)),
    "collective": io.dumps(SCHEDULE.collective),
    "timings": io.timings.dumps_json(TIMES.rows),
}


def read(text: str) -> object:
    return io.timings.loads(text) if '"jaxcoll.timings' in text else io.loads(text)


def test_it_is_a_schema_and_names_the_versions():
    VALIDATOR.check_schema(VALIDATOR.schema)
    formats = {kind["properties"]["format"]["const"] for kind in _kinds()}
    assert formats == set(_FORMATS)


_FORMATS = (
    "jaxcoll.topology/1", "jaxcoll.collective/1", "jaxcoll.schedule/1", "jaxcoll.timings/1"
)  # fmt: skip


def _kinds():
    definitions = VALIDATOR.schema["$defs"]
    return [definitions[name] for name in ("topology", "collective", "schedule", "timings")]


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_pass(name):
    VALIDATOR.validate(json.loads(SAMPLES[name]))
    read(SAMPLES[name])


@settings(deadline=None, max_examples=20)
@given(OBJECTS)
def test_what_is_written_passes(made):
    VALIDATOR.validate(json.loads(io.dumps(made)))


@pytest.mark.slow
@settings(deadline=None, max_examples=1000)
@given(OBJECTS)
def test_a_thousand_written_files_pass(made):
    VALIDATOR.validate(json.loads(io.dumps(made)))


@pytest.mark.parametrize("name", SAMPLES)
def test_mutants_that_it_refuses_are_refused(name):
    assert refused(name, 150) > 30


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_ten_thousand_mutants_that_it_refuses_are_refused(name):
    assert refused(name, 10_000) > 2_000


def refused(name: str, count: int) -> int:
    """How many mutants the schema refuses; the reader refuses each of them."""
    number = 0
    for seed in range(count):
        text = mutated_json(SAMPLES[name], random.Random(seed)).decode(errors="replace")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if VALIDATOR.is_valid(value):
            continue
        number += 1
        with pytest.raises(FormatError):
            read(text)
    return number
