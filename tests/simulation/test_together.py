"""Schedules on the same wires: alone as ever, one behind the other at worst, no wire overloaded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import io
from jaxcoll.cli import main
from jaxcoll.collective import Collective
from jaxcoll.errors import ScheduleError
from jaxcoll.simulation import LinkModel, simulate, simulate_together, steady_seconds
from jaxcoll.synth import Direct, Ring, synthesize
from jaxcoll.topologies import dgx_h100, ring, torus
from tests import strategies

SPEED: dict[str, Any] = {"alpha": 1e-6, "bandwidth": 50e9}


@settings(max_examples=40)
@given(strategies.topologies(2, 8, switches=True), st.sampled_from(["astra", "tacos"]), st.data())
def test_one_alone_is_what_simulate_says(topology, model, data):
    kind, maker = data.draw(
        st.sampled_from(
            [
                ("all_reduce", "tacos"),
                ("all_to_all", "min_congestion"),
                ("broadcast", "joint_trees"),
            ]
        )
    )
    schedule = synthesize(topology, kind, maker, chunks=1, nbytes=1e6)
    found = simulate_together([schedule], 1e6, model)
    assert found.together == found.alone
    assert found.alone == pytest.approx((simulate(schedule, 1e6, model).time,), rel=1e-12)


@settings(max_examples=25)
@given(st.sampled_from([torus(2, 3, **SPEED), ring(5, **SPEED), dgx_h100(1)]), st.data())
def test_none_is_faster_beside_others_and_wires_carry_what_they_can(topology, data):
    makers = [data.draw(st.sampled_from([Ring(), Direct()])) for _ in range(2)]
    kinds = [data.draw(st.sampled_from(["all_gather", "reduce_scatter"])) for _ in range(2)]
    sizes = [data.draw(st.sampled_from([1e5, 1e6, 1e8])) for _ in range(2)]
    both = [
        maker.synthesize(topology, Collective(kind, topology.num_ranks, 2))
        for maker, kind in zip(makers, kinds, strict=True)
    ]
    found = simulate_together(both, sizes)
    assert all(a <= b * (1 + 1e-12) for a, b in zip(found.alone, found.together, strict=True))
    # A link has both to carry; and nobody waits for longer than the others run.
    loads = [float(steady_seconds(s)) * size for s, size in zip(both, sizes, strict=True)]
    assert found.time <= 2 * sum(found.alone)
    if both[0] == both[1]:
        assert found.time >= sum(loads) * (1 - 1e-12)


def test_equals_take_turns_and_disjoint_ones_take_no_longer():
    topology = ring(4, bidirectional=False, **SPEED)
    one = Ring(bidirectional=False).synthesize(topology, Collective("all_gather", 4, 64))
    found = simulate_together([one, one], 1e9)
    assert found.time == pytest.approx(2 * found.alone[0], rel=0.01)
    assert min(found.slowdown) > 1.6
    three = simulate_together([one, one, one], 1e9)
    assert three.time == pytest.approx(3 * found.alone[0], rel=0.01)
    # Rows and columns of a torus share no link.
    grid = torus(4, 4, **SPEED)
    rows = [tuple(range(4 * r, 4 * r + 4)) for r in range(4)]
    columns = [tuple(range(c, 16, 4)) for c in range(4)]
    apart = [
        synthesize(grid, "all_reduce", groups=groups, nbytes=1e6, helpers=False)
        for groups in (rows, columns)
    ]
    assert simulate_together(apart, 1e6).slowdown == pytest.approx((1, 1), rel=1e-12)


def test_what_cannot_be_together_is_refused():
    one = synthesize(ring(4), "all_gather", "ring")
    other = synthesize(ring(5), "all_gather", "ring")
    for schedules, nbytes, said in (
        ([], 1e6, "one or more of the same network"),
        ([one, other], 1e6, "same network"),
        ([one, "ring"], 1e6, "a schedule of schedules"),
        ([one, one], [1e6], "one for each of 2"),
        ([one], 0, "nbytes"),
    ):
        with pytest.raises(ScheduleError, match=said):
            simulate_together(schedules, nbytes)  # type: ignore[arg-type]
    law = LinkModel("mine", law=lambda link, nbytes, serial, alpha, ready, start: (serial, alpha))
    with pytest.raises(ScheduleError, match="'mine' is a law"):
        simulate_together([one], 1e6, law)


def test_the_command_line_says_what_they_cost_each_other(tmp_path, capfd):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    for path in (one, two):
        io.save(path, synthesize(ring(4, **SPEED), "all_gather", "ring", chunks=1))
    assert main(["simulate", str(one), "--beside", str(two), "--size", "1MB"]) == 0
    said = capfd.readouterr().out
    assert said.count("together, 1MB: ") == 2
    assert "1.75 times its" in said
    assert main(["simulate", str(one), "--beside", str(two), "--execution", "gpu"]) == 2
    assert "leave --execution out" in capfd.readouterr().err
