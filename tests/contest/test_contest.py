"""Contests: steps as they were measured, and verdicts that no more than the evidence allows."""

from __future__ import annotations

import collections
import dataclasses
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll import measured
from jaxcoll.contest import Answer, Entry, Verdict, contest
from jaxcoll.contest.prices import MeasuredSteps, SheetSteps, price_of, step_loads
from jaxcoll.errors import CollectiveError, FormatError, TopologyError
from jaxcoll.simulation.execution_costs import costs_of
from tests.strategies import topologies

H100 = measured.machine_of("h100-host")


def loads_by_definition(schedule: jc.Schedule) -> list[list[float]]:
    """The definition of ``step_loads``, send by send, in shares of a rank's buffer."""
    parts = schedule.collective.chunks_per_buffer
    found = []
    for step in range(schedule.num_steps):
        pairs: dict[tuple[int, int], float] = collections.defaultdict(float)
        for i in range(int(schedule.step_ptr[step]), int(schedule.step_ptr[step + 1])):
            pair = int(schedule.src[i]), int(schedule.dst[i])
            pairs[pair] += 1 / int(parts[schedule.chunk[i]])
        ends = [[(p[side], size) for p, size in pairs.items()] for side in (0, 1)]
        peers = max(max(collections.Counter(r for r, _ in end).values()) for end in ends)
        busy = max(
            sum(size for r, size in end if r == rank)
            for end in ends
            for rank in range(schedule.topology.num_ranks)
        )
        found.append([peers, busy, max(pairs.values())])
    return found


@settings(deadline=None, max_examples=15)
@given(topologies(), st.sampled_from(["all_gather", "all_reduce", "all_to_all"]), st.data())
def test_loads_of_steps_are_those_of_their_sends(topology, kind, data):
    name = "direct" if kind == "all_to_all" else data.draw(st.sampled_from(["tacos", "direct"]))
    schedule = jc.synthesize(topology, kind, name, chunks=data.draw(st.integers(1, 3)))
    loads, whole = step_loads(schedule)
    shares = np.column_stack([loads[:, 0], loads[:, 1] / whole, loads[:, 2] / whole])
    np.testing.assert_allclose(shares, loads_by_definition(schedule), rtol=1e-12)


def test_a_step_takes_as_long_as_its_permute_or_its_exchange_was_measured_to_take():
    steps = MeasuredSteps.of(H100, H100.topology())
    assert steps is not None
    patterns = [curve for _, curve in measured.curves_of("h100-host", "permute")]
    row = {curve.algorithm: float(curve.seconds[12]) for curve in patterns}
    assert steps.step(1, int(patterns[0].nbytes[12])) == min(row.values())
    ((_, whole),) = [
        (table, curve)
        for table, curve in measured.curves_of("h100-host", "all_to_all")
        if curve.ranks == 8 and curve.dtype == "f32"
    ]
    for nbytes, seconds in zip(whole.nbytes.tolist(), whole.seconds.tolist(), strict=True):
        assert steps.step(7, nbytes / 8) == pytest.approx(seconds)
    # Three others are among four, five between four and eight.
    assert steps.step(3, 2**20) < steps.step(5, 2**20) < steps.step(7, 2**20)


def test_below_the_first_row_a_step_is_as_long_and_above_the_last_as_fast():
    steps = MeasuredSteps.of(H100, H100.topology())
    assert steps is not None
    assert steps.step(1, 1) == steps.step(1, 1024)
    assert steps.step(1, 2**33) == pytest.approx(4 * steps.step(1, 2**31))


def test_a_ring_takes_the_sum_of_its_steps():
    steps = MeasuredSteps.of(H100, H100.topology())
    assert steps is not None
    ring = jc.synthesize(H100.topology(), "all_gather", "nccl_ring", chunks=1)
    without = dataclasses.replace(steps.copies, copied=0.0, added=0.0)
    free = dataclasses.replace(steps, copies=without)
    assert ring.num_steps == 7
    assert free.seconds(ring, 2**26) == pytest.approx(7 * steps.step(1, 2**23))
    # Seven of eight shards arrive, and are read and written twice at 3.35 TB/s.
    copied = steps.seconds(ring, 2**26) - free.seconds(ring, 2**26)
    assert copied == pytest.approx(4 * 7 / 8 * 2**26 / 3.35e12, rel=0.01)


def test_every_machine_whose_permutes_were_measured_has_a_price_by_them():
    copied = {}
    for name, machine in measured.MACHINES.items():
        steps = MeasuredSteps.of(machine, machine.topology())
        # Of TPUs two sizes are published: too few to price a step by.
        many = [each for _, each in measured.curves_of(name, "permute") if len(each.ns) > 2]
        assert (steps is not None) == bool(many)
        copied[name] = None if steps is None else steps.copies.copied
    assert copied["mi300x-host"] == pytest.approx(copied["h100-host"] * 3.35 / 5.3)


def own_seconds(verdict: Verdict) -> float:
    assert verdict.own is not None
    return verdict.own.seconds


def held(name, kind, size, synthesizers):
    found = contest(name, kind, [size])
    return found.verdicts(found.entries(synthesizers))[0]


def test_on_a_healthy_host_the_answer_is_no():
    verdict = held("h100-host", "all_gather", 2**26, ["ring", "direct"])
    assert verdict.answer is Answer.NO
    assert verdict.share is not None
    assert verdict.share > 1.25
    assert f"no: {verdict.best}, our fastest" in verdict.reason


def test_where_switches_add_no_schedule_can_be_as_fast():
    # NVLS: more than what links that forward can carry.
    verdict = held("h100-host", "all_reduce", 2**30, [])
    assert (verdict.answer, verdict.seconds) == (Answer.NO, None)
    assert verdict.bound_seconds > own_seconds(verdict)
    assert "faster than any schedule can be" in verdict.reason


def test_where_the_own_time_is_below_that_of_the_links_nothing_is_said():
    # Fugaku's network has six dimensions: between 64x64 nodes there are more links than a torus's.
    verdict = held("fugaku-64x64", "all_to_all", 2**26, [])
    assert verdict.bound_seconds < own_seconds(verdict) < verdict.floor_seconds
    assert verdict.answer is Answer.OPEN
    assert "the machine has more" in verdict.reason
    # NVLS is below the bound of schedules, and above that of its switches.
    adding = held("h100-host", "all_reduce", 2**30, [])
    assert adding.floor_seconds < own_seconds(adding) < adding.bound_seconds


def test_on_a_torus_whose_software_sends_around_one_ring_the_answer_is_yes():
    verdict = held("fugaku-4x4x4", "reduce_scatter", 2**26, ["bucket"])
    assert (verdict.answer, verdict.best) == (Answer.YES, "bucket")
    # An algorithm that was forced there shows that it is not the model's doing.
    assert verdict.forced is not None
    assert verdict.forced.seconds < own_seconds(verdict) / 2


def test_a_size_that_nobody_measured_is_left_open():
    verdict = held("h100-2-hosts", "all_reduce", 2**40, [])
    assert (verdict.answer, verdict.own) == (Answer.OPEN, None)
    assert "nobody has published" in verdict.reason


@given(st.floats(-6, 6), st.sampled_from([2**20, 2**26]))
def test_a_verdict_needs_more_than_prices_err(power, nbytes):
    found, share = HELD[nbytes], 2**power
    own = found.own[0]
    assert own is not None
    (verdict,) = found.verdicts(
        [Entry("ring", (share * own.seconds,)), Entry("tacos", (None,), "no")]
    )
    factor, found_share = found.price.factor(nbytes), verdict.share or 0.0
    assert found_share == pytest.approx(share)
    assert (verdict.answer is Answer.YES) == (found_share < 1 / factor)
    assert (verdict.answer is Answer.NO) == (found_share > factor)
    assert verdict.best == "ring"


HELD = {size: contest("fugaku-4x4x4", "all_to_all", [size]) for size in (2**20, 2**26)}


def test_prices_are_of_the_nearest_evidence():
    two, torus = (measured.machine_of(name) for name in ("h100-2-hosts", "fugaku-4x4x4"))
    assert isinstance(price_of(H100, H100.topology(4)), MeasuredSteps)
    charged = price_of(two, two.topology())
    assert "fitted to published times of h100-host" in charged.said
    assert charged.costs == costs_of("gpu")
    assert isinstance(price_of(torus, torus.topology()), SheetSteps)


def test_a_synthesizer_that_refuses_says_why():
    found = contest("h100-host", "all_reduce", [2**20, 2**21])
    (entry,) = found.entries(["bfb"])
    assert entry.seconds == (None, None)
    assert "without switches" in (entry.refusal or "")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("torus",), FormatError, "nobody has measured a machine 'torus'"),
        ((jc.topologies.ring(4),), FormatError, "compare with execution= prices any network"),
        (
            ("h100-host", "broadcast"),
            FormatError,
            "of broadcast on h100-host; published are those of all_gather,",
        ),
        (("h100-host", "all_gather", []), CollectiveError, "at least one size, got none"),
        (("h100-host", "all_gather", [0]), CollectiveError, "a size"),
        (("h100-host:9",), FormatError, "2 to 8 ranks"),
    ],
)
def test_refusals(arguments, error, said):
    with pytest.raises(error, match=said):
        contest(*arguments)


def test_refusals_of_entries():
    found = HELD[2**20]
    with pytest.raises(TopologyError, match="synthesizer"):
        found.entries(["blind"])
    with pytest.raises(TopologyError, match="but this contest has 1 sizes"):
        found.verdicts([Entry("ring", (1.0, 2.0))])
    with pytest.raises(TopologyError, match="an entry"):
        found.verdicts(cast("list[Entry]", ["ring"]))
