"""Readers of MSCCL XML and MSCCL++ plans take no file that ``prove`` refuses.

A reader runs a program in one order, and takes from a plan the steps that it says; whether the
machine does the same in every order is the prover's to say.
"""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given, settings

import jaxcoll as jc
from jaxcoll.errors import FormatError, JaxcollError, ScheduleError
from jaxcoll.prove import NotProved, NotRead, prove_text
from tests.strategies import SEEDS

RING = jc.topologies.ring(3)
SUMS = jc.synthesize(RING, "all_reduce", "ring", chunks=1)
XML = jc.io.msccl.dumps(SUMS)
PLAN = jc.io.mscclpp.dumps(SUMS)


def read(text: str) -> jc.Schedule:
    return (jc.io.msccl.read if text.startswith("<") else jc.io.mscclpp.loads)(text, RING)


@pytest.mark.parametrize("text", [XML, PLAN], ids=["xml", "plan"])
def test_what_was_written_is_read(text):
    assert read(text) == SUMS


def _without_waits(plan: str) -> str:
    """A plan whose threads of a block do not wait for one another."""
    said = json.loads(plan)
    for gpu in said["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"] = [op for op in block["ops"] if op["name"] != "nop"]
    return json.dumps(said)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (re.sub('hasdep="1"', 'hasdep="0"', re.sub('depid="[0-9]+"', 'depid="-1"', XML)),
         ScheduleError, "in no certain order"),
        (re.sub('(type="rrc" srcbuf="i" srcoff=)"1"', r'\1"0"', XML), ScheduleError, "adds chunk"),
        (XML.replace('outofplace="0"', 'outofplace="1"'), ScheduleError, "never receives"),
        (re.sub(' s="0"', "", XML), FormatError, "lacks 's'"),
        (_without_waits(PLAN), ScheduleError, "in no certain order"),
        (PLAN.replace('"protocol": "Simple"', '"protocol": null'), FormatError, "protocol"),
    ],
)  # fmt: skip
def test_what_runs_in_one_order_only_or_on_no_machine_is_refused(text, error, said):
    with pytest.raises(error, match=said):
        read(text)


def _mutant_of_xml(rng: random.Random) -> str:
    """Numbers of attributes changed, or lines moved."""
    text = XML
    for _ in range(rng.randint(1, 2)):
        value = rng.choice(list(re.finditer('="(-?[0-9]+)"', text)))
        text = text[: value.start(1)] + str(rng.randint(-1, 3)) + text[value.end(1) :]
    if rng.random() < 0.3:
        lines = text.split("\n")
        a, b = rng.sample(range(len(lines)), 2)
        lines[a], lines[b] = lines[b], lines[a]
        text = "\n".join(lines)
    return text


def _mutant_of_plan(rng: random.Random) -> str:
    """Operations left out, doubled or swapped, or a number changed."""
    said = json.loads(PLAN)
    ops = rng.choice(rng.choice(said["gpus"])["threadblocks"])["ops"]
    a, b = (rng.randrange(len(ops)) for _ in range(2))
    match rng.randrange(4):
        case 0:
            ops.pop(a)
        case 1:
            ops.insert(a, ops[b])
        case 2:
            ops[a], ops[b] = ops[b], ops[a]
        case _:
            numbers = list(re.finditer(r": ([0-9]+)\b", text := json.dumps(said)))
            one = rng.choice(numbers)
            return f"{text[: one.start(1)]}{rng.randint(0, 3)}{text[one.end(1) :]}"
    return json.dumps(said)


@pytest.mark.parametrize("mutant", [_mutant_of_xml, _mutant_of_plan])
@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_no_mutant_is_read_that_is_not_proved(mutant, seed):
    text = mutant(random.Random(seed))
    try:
        read(text)
    except JaxcollError:
        return
    try:
        prove_text(text)
    except (NotProved, NotRead) as error:
        pytest.fail(f"read, and not proved: {error}")
