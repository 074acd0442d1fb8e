"""Execution costs: the charges, by counts made in another way, and refusals."""

from __future__ import annotations

import dataclasses
import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll import Collective, topologies
from jaxcoll.errors import CollectiveError, ScheduleError, TuneError
from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.io import json
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.simulation.execution_costs import (
    ExecutionCosts,
    NativeCost,
    costs_of,
    rounds_of_steps,
)

NETWORKS = (topologies.torus(2, 4), topologies.ring(5), topologies.switch(6), topologies.mesh(2, 3))
NAMES = ("ring", "direct", "bfb", "rhd", "forestcoll", "tacos")
PRICES = st.floats(0, 1, allow_nan=False)


def schedules():
    for network, name, chunks in itertools.product(NETWORKS, NAMES, (1, 3)):
        for kind in ("all_gather", "all_reduce"):
            try:
                yield jc.synthesize(network, Collective(kind, network.num_ranks, chunks), name)
            except jc.JaxcollError:
                continue


def test_rounds_are_the_permutes_that_run():
    checked = 0
    for schedule in schedules():
        steps = [len(rounds) for rounds in permute_program(schedule).steps]
        assert rounds_of_steps(schedule).tolist() == steps, schedule
        checked += 1
    assert checked > 40


@given(st.tuples(PRICES, PRICES, PRICES, PRICES), st.booleans(), st.integers(1, 10**9))
def test_a_schedule_is_charged_its_rounds_steps_and_bytes(prices, shared, nbytes):
    schedule = jc.synthesize(NETWORKS[0], Collective("all_reduce", 8, 3), "tacos")
    permute, step, copied, added = prices
    costs = ExecutionCosts("cpu", permute, step, copied, added, shared=shared)
    n, collective = 8, schedule.collective
    sizes = collective.chunk_bytes(nbytes)
    received = [Fraction(0)] * n
    summed = [Fraction(0)] * n
    messages: dict[int, dict[int, set]] = {}
    columns = (schedule.step, schedule.src, schedule.dst, schedule.chunk, schedule.reduce)
    for at, src, dst, chunk, reduce in zip(*(c.tolist() for c in columns), strict=True):
        received[dst] += sizes[chunk]
        summed[dst] += sizes[chunk] * reduce
        ends = messages.setdefault(at, {})
        ends.setdefault(src, set()).add((src, dst))
        ends.setdefault(n + dst, set()).add((src, dst))
    rounds = sum(max(map(len, ends.values())) for ends in messages.values())
    pick, times = (sum, n) if shared else (max, 1)
    wanted = times * (rounds * as_fraction(permute) + schedule.num_steps * as_fraction(step))
    wanted += pick(received) * as_fraction(copied) + pick(summed) * as_fraction(added)
    assert costs.seconds(schedule, nbytes) == wanted
    assert costs.least_seconds(collective) <= wanted


def test_simulated_times_are_those_of_the_links_and_the_charge():
    schedule = jc.synthesize(NETWORKS[0], "all_gather", "bucket", chunks=1)
    pure = jc.simulate(schedule, 1 << 20)
    charged = jc.simulate(schedule, 1 << 20, execution="cpu")
    costs = costs_of("cpu")
    assert costs is not None
    assert charged.exact_time == pure.exact_time + costs.seconds(schedule, 1 << 20)
    assert np.array_equal(charged.end, pure.end)
    assert pure.charge == 0
    free = ExecutionCosts("cpu", 0, 0, 0, 0)
    assert jc.simulate(schedule, 1 << 20, execution=free).exact_time == pure.exact_time
    assert "with execution costs" in repr(charged)
    assert "with execution costs" not in repr(pure)


def test_every_round_of_an_all_to_all_may_copy_the_buffer():
    schedule = jc.synthesize(NETWORKS[0], "all_to_all", "direct", chunks=1)
    costs = ExecutionCosts("cpu", 0, 0, 0, 0, swapped=0.5)
    assert costs.seconds(schedule, 100) == 7 * 50
    assert dataclasses.replace(costs, shared=True).seconds(schedule, 100) == 8 * 7 * 50
    gather = jc.synthesize(NETWORKS[0], "all_gather", "direct", chunks=1)
    assert costs.seconds(gather, 100) == 0


def test_auto_takes_few_rounds_where_these_are_charged():
    torus = topologies.torus(2, 4, alpha=1e-6, bandwidth=50e9)
    wires = jc.synthesize(torus, "all_reduce", nbytes=256 << 10)
    charged = jc.synthesize(torus, "all_reduce", nbytes=256 << 10, execution="cpu")
    bucket = jc.synthesize(torus, "all_reduce", "bucket", chunks=1)
    times = [
        jc.simulate(each, 256 << 10, execution="cpu").time for each in (charged, bucket, wires)
    ]
    assert times[0] <= times[1] <= times[2]
    assert rounds_of_steps(charged).sum() <= 2 * rounds_of_steps(bucket).sum()
    certificate: Any = charged.provenance.certificate
    assert certificate["time"] == times[0]
    assert certificate["bound"] <= times[0]
    assert certificate["execution"] == "cpu"


def test_a_schedule_by_execution_costs_goes_to_a_file_and_back():
    torus = topologies.torus(2, 4)
    schedule = jc.synthesize(torus, "all_gather", nbytes=1 << 20, execution="gpu")
    again: Any = json.loads(json.dumps(schedule))
    assert again == schedule
    assert again.provenance.parameters["execution"]["backend"] == "gpu"


def test_native_costs():
    costs = ExecutionCosts("cpu", 1, 1, 1, 1, native=(NativeCost("all_reduce", 2.0, 0.5),))
    assert costs.native_seconds("all_reduce", 10, 8) == 7
    assert costs.native_seconds("all_gather", 10, 8) is None
    shared = dataclasses.replace(costs, shared=True)
    assert shared.native_seconds("all_reduce", 10, 8) == 56


@pytest.mark.parametrize("backend", ["cpu", "gpu", "tpu"])
def test_shipped_costs_say_where_they_come_from(backend):
    costs = costs_of(backend)
    assert costs is not None
    assert costs.backend == backend
    assert costs.source
    assert {cost.kind for cost in costs.native} == {
        "all_gather",
        "reduce_scatter",
        "all_reduce",
        "all_to_all",
    }


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ExecutionCosts("cpu", -1e-6, 0, 0, 0), "permute of execution costs of cpu"),
        (lambda: ExecutionCosts("cpu", 0, float("nan"), 0, 0), "step of execution costs of cpu"),
        (lambda: ExecutionCosts("cpu", 0, 0, float("inf"), 0), "copied of execution costs"),
        (lambda: ExecutionCosts("cpu", 0, 0, 0, "much"), "added of execution costs"),  # type: ignore[arg-type]
        (lambda: ExecutionCosts("abacus", 0, 0, 0, 0), "backend of execution costs"),
        (lambda: NativeCost("broadcast", 0, 0), "kind of a native cost"),
        (lambda: NativeCost("all_reduce", 0, -1), "per_byte of the native cost of all_reduce"),
        (
            lambda: ExecutionCosts("cpu", 0, 0, 0, 0, native=(NativeCost("all_reduce", 0, 0),) * 2),
            "all_reduce is given twice",
        ),
    ],
)
def test_bad_costs_are_refused_by_name(make, said):
    with pytest.raises(TuneError, match=said):
        make()


def test_bad_arguments_are_refused_by_name():
    schedule = jc.synthesize(NETWORKS[1], "all_gather", "ring")
    with pytest.raises(ScheduleError, match="execution"):
        jc.simulate(schedule, 1, execution="abacus")
    with pytest.raises(CollectiveError, match="execution"):
        jc.synthesize(NETWORKS[1], "all_gather", execution=3)  # type: ignore[arg-type]
