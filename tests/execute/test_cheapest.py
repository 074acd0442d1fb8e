"""Calls without ``schedule=``: ``jax.lax`` runs, or a schedule that wins on the stated network."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import topologies
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.execute.choice import stated
from jaxcoll.execute.choice.cheapest import (
    MARGIN,
    MARGIN_IN_ORDER,
    candidates,
    margin_of,
    taken,
)
from jaxcoll.execute.layout import Axes
from jaxcoll.execute.primitives import Native
from jaxcoll.simulation import ExecutionCosts
from jaxcoll.simulation.execution_costs import costs_of, shipped_costs
from jaxcoll.simulation.execution_order import LINKS
from jaxcoll.synth.native import lax_seconds
from jaxcoll.tune.in_use import use
from tests.execute.harness import integers, mesh_of, sharded

OPERATIONS = re.compile(r"stablehlo\.(collective_permute|all_\w+|reduce_scatter)")
CALLS = {
    "psum": lambda m, v: m.psum(v, "x"),
    "pmean": lambda m, v: m.pmean(v, "x"),
    "all_gather": lambda m, v: m.all_gather(v, "x", axis=1),
    "all_gather tiled": lambda m, v: m.all_gather(v, "x", axis=1, tiled=True),
    "psum_scatter": lambda m, v: m.psum_scatter(v, "x", scatter_dimension=1, tiled=True),
    "all_to_all": lambda m, v: m.all_to_all(v, "x", 1, 2, tiled=True),
}
# Those of jax.lax without a rule or a derivative that ours have, and the same operations.
UNTILED = {
    "psum_scatter": lambda m, v: m.psum_scatter(v, "x", scatter_dimension=1),
    "all_to_all": lambda m, v: m.all_to_all(v, "x", 1, 2),
    "all_to_all back": lambda m, v: m.all_to_all(v, "x", 1, 0),
    "all_to_all in place": lambda m, v: m.all_to_all(v, "x", 1, 1),
}


def operations(function, x, mesh=None, vma=True) -> list[str]:
    """The collectives of a program as it is lowered, in order."""
    step = sharded(function, mesh or mesh_of(8), P("x"), P("x"), check_vma=vma)
    return OPERATIONS.findall(step.lower(x).as_text())


@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_the_default_is_the_program_of_lax(name, vma):
    x = integers((16, 8, 3), np.float32)
    out = P() if name in ("psum", "pmean") and vma else P("x")
    texts = [
        sharded(functools.partial(CALLS[name], module), mesh_of(8), P("x"), out, check_vma=vma)
        .lower(x)
        .as_text()
        for module in (jc, lax)
    ]
    assert re.sub("@jit_.*?[ (]", "", texts[0]) == re.sub("@jit_.*?[ (]", "", texts[1])


@pytest.mark.parametrize("name", UNTILED)
def test_untiled_calls_run_the_operations_of_lax(name):
    x = integers((16, 8, 3), np.float32)
    ours, theirs = (
        sharded(functools.partial(UNTILED[name], module), mesh_of(8), P("x"), P("x"))
        for module in (jc, lax)
    )
    np.testing.assert_array_equal(ours(x), theirs(x))
    both = [OPERATIONS.findall(step.lower(x).as_text()) for step in (ours, theirs)]
    assert both[0] == both[1]


def test_all_leaves_go_to_lax_in_one_call():
    leaves = [integers((8, n), np.float32) for n in (3, 5, 1 << 16)]
    texts = [
        sharded(lambda v, m=module: m.psum(v, "x"), mesh_of(8), P("x"), P()).lower(leaves).as_text()
        for module in (jc, lax)
    ]
    assert texts[0].count("stablehlo.all_reduce") == texts[1].count("stablehlo.all_reduce")


@pytest.mark.parametrize(
    "call",
    [
        lambda v: jc.psum(v, "x", axis_index_groups=[[0, 1], [2, 3]]),
        lambda v: jc.all_gather(v, "x", axis_index_groups=[[0, 3], [1, 2]], tiled=True),
        lambda v: jax.vmap(lambda u: jc.psum(u, "x", axis_index_groups=[[0, 1], [2, 3]]))(v),
        lambda v: jax.grad(lambda u: (jc.all_gather(u, "x", tiled=True) ** 2).sum())(v),
        lambda v: jax.grad(lambda u: (jc.all_to_all(u, "x", 1, 0) ** 3).sum())(v),
        lambda v: jax.vmap(lambda u: jc.psum_scatter(u, "x", tiled=True), in_axes=1)(v),
    ],
)
def test_where_lax_lacks_a_rule_the_default_has_it_without_permutes(call):
    x = integers((16, 4), np.float32)
    mesh = mesh_of(4)
    found = operations(call, x, mesh)
    assert found
    assert "collective_permute" not in found
    names = ("psum", "all_gather", "all_to_all", "psum_scatter")
    scheduled = {name: functools.partial(getattr(jc, name), schedule="direct") for name in names}
    with pytest.MonkeyPatch.context() as patch:
        wanted = sharded(call, mesh, P("x"), P("x"))(x)
        for name, function in scheduled.items():
            patch.setattr(jc, name, function)
        np.testing.assert_array_equal(sharded(call, mesh, P("x"), P("x"))(x), wanted)


def test_maxima_of_floats_keep_nans():
    x = jnp.arange(8.0).at[3].set(jnp.nan)
    for maximum in (jc.pmax, jc.pmin):
        step = sharded(lambda v, m=maximum: m(v, "x"), mesh_of(8), P("x"), P())
        assert np.isnan(step(x)).all()
    whole = integers((8,), np.int32)
    assert operations(lambda v: jc.pmax(v, "x"), whole, vma=False) == ["all_reduce"]


# ---------------------------------------------------------------------- a stated network


def one_nic_per_host() -> jc.Topology:
    """Two hosts of four ranks behind a switch each, joined by one slow link."""
    up = [(rank, 8 + rank // 4) for rank in range(8)]
    pairs = [*up, *((b, a) for a, b in up), (8, 9), (9, 8)]
    src, dst = zip(*pairs, strict=True)
    alpha, bandwidth = [1e-6] * 16 + [2e-5] * 2, [1e10] * 16 + [2.5e7] * 2
    columns = map(np.asarray, (src, dst, alpha, bandwidth))
    return jc.Topology(8, *columns, num_vertices=10)


def missing_link() -> jc.Topology:
    return topologies.torus(2, 4, alpha=1e-5, bandwidth=1.25e8).without(links=[0])


def mixed_links() -> jc.Topology:
    return topologies.switch_2d(4, 2, alpha=1e-5, bandwidth=(1e10, 1.25e8))


SLOW = (one_nic_per_host, missing_link, mixed_links)
FAST = topologies.torus(2, 4, alpha=1e-6, bandwidth=50e9)
LONG = 1 << 22  # floats of a rank


def long_operand(parts: int = 1) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((8 * LONG // parts,), np.float32)


@pytest.mark.parametrize("network", SLOW)
@pytest.mark.parametrize("kind", ["psum", "all_gather", "psum_scatter"])
def test_a_schedule_runs_where_it_wins(network, kind):
    call = {
        "psum": lambda v: jc.psum(v, "x"),
        "all_gather": lambda v: jc.all_gather(v, "x", tiled=True),
        "psum_scatter": lambda v: jc.psum_scatter(v, "x", tiled=True),
    }[kind]
    x = long_operand(8 if kind == "all_gather" else 1)
    with jc.use_topology(network()):
        found = operations(call, x, vma=False)
        few = operations(call, jax.ShapeDtypeStruct((64,), np.float32), vma=False)
    assert set(found) == {"collective_permute"}
    assert len(few) == 1
    assert "collective_permute" not in few  # of few bytes the rounds cost more than the links
    with jc.use_topology(FAST):
        assert len(operations(call, x, vma=False)) == 1
    assert len(operations(call, x, vma=False)) == 1


@pytest.mark.slow
def test_derivatives_and_batches_of_both_choices_are_those_of_lax():
    cheap = ExecutionCosts("cpu", 0, 0, 0, 0, source="a machine that charges nothing")
    x = integers((16, 8), np.float32)

    def every(m, v):
        total = jax.grad(lambda u: (m.psum(u, "x") ** 2).sum())(v)
        rows = jax.vmap(lambda u: m.all_gather(u, "x", tiled=True))(v)
        parts = jax.grad(lambda u: (m.psum_scatter(u, "x", scatter_dimension=1) ** 2).sum())(v)
        return total, rows, parts

    def run(m):
        step = sharded(functools.partial(every, m), mesh_of(8), P("x"), P("x"), check_vma=False)
        return step, step.lower(x).as_text()

    by_lax, wanted = run(lax)
    by_default, text = run(jc)
    assert "collective_permute" not in text
    with jc.use_topology(FAST, execution=cheap):
        by_schedule, text = run(jc)
        assert "all_reduce" not in text
        found = by_schedule(x)
    assert wanted
    for each in (by_default(x), found):
        jax.tree.map(np.testing.assert_array_equal, each, by_lax(x))


def test_one_topology_of_the_mesh_serves_calls_along_each_axis():
    def step(v):
        return jc.psum(v, "x"), jc.psum(v, "y"), jc.psum(v, ("x", "y"))

    cheap = ExecutionCosts("cpu", 0, 0, 0, 0)
    x = integers((64,), np.float32)
    specs = (P(("x", "y")), P("y"), P("x"), P())
    wanted = sharded(step, mesh_of(2, 4), specs[0], specs[1:])(x)
    with jc.use_topology(FAST, execution=cheap):
        run = sharded(step, mesh_of(2, 4), specs[0], specs[1:])
        assert "collective_permute" in run.lower(x).as_text()
        jax.tree.map(np.testing.assert_array_equal, run(x), wanted)


def test_auto_and_names_run_on_the_stated_topology():
    x = long_operand()
    with jc.use_topology(FAST):
        auto = operations(lambda v: jc.psum(v, "x", schedule="auto"), x, vma=False)
        bucket = operations(lambda v: jc.psum(v, "x", schedule="bucket"), x, vma=False)
    # Per-step costs included: the links alone would have 598 steps.
    assert 0 < len(auto) <= 2 * len(bucket)
    assert set(auto) == {"collective_permute"}
    with jc.use_topology(topologies.ring(8)), pytest.raises(TopologyError, match="ring_2d needs"):
        operations(lambda v: jc.psum(v, "x", schedule="ring_2d"), x, vma=False)


def test_what_is_stated_is_part_of_the_key_of_a_program():
    x = np.ones(8 * LONG // 16, np.float32)
    step = sharded(lambda v: jc.psum(v, "x"), mesh_of(8), P("x"), P(), check_vma=False)
    with jc.use_topology(missing_link()):
        assert "collective_permute" in step.lower(x).as_text()
    assert "collective_permute" not in step.lower(x).as_text()


def test_bad_statements_are_refused_by_name():
    x = integers((8,), np.float32)
    call = lambda v: jc.psum(v, "x")  # noqa: E731
    with (
        jc.use_topology(topologies.ring(5)),
        pytest.raises(CollectiveError, match=r"has 5 ranks.*state one of the axis or of the mesh"),
    ):
        operations(call, x, vma=False)
    with (
        jc.use_topology(None, execution="tpu"),
        pytest.raises(CollectiveError, match=r"costs are for 'tpu'.*the mesh has devices of 'cpu'"),
    ):
        operations(call, x, vma=False)
    with (
        pytest.raises(CollectiveError, match="execution"),
        jc.use_topology(None, execution="abacus"),
    ):
        pass
    with pytest.raises(CollectiveError, match="topology"), jc.use_topology(8):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_between_cpu_devices_lax_is_cheapest_of_all_sizes(kind, ranks):
    for nbytes in (1 << 10, 1 << 20, 1 << 26):
        found = candidates(Collective(kind, ranks), nbytes, None, costs_of("cpu"))
        assert isinstance(taken(found).runs, Native)


@pytest.mark.parametrize("ranks", [9, 81])
def test_sums_of_few_bytes_meet_in_the_middle_of_a_mesh(ranks):
    side = round(ranks**0.5)
    mesh, cpu = topologies.mesh(side, side, alpha=1e-3), costs_of("cpu")
    found = candidates(Collective("all_reduce", ranks), 1000, mesh, cpu)
    schedules = [each for each in found if not isinstance(each.runs, Native)]
    assert min(schedules, key=lambda each: each.seconds).name == "middle_trees"


def test_a_choice_is_made_once_and_is_the_same_every_time():
    args = (Collective("all_reduce", 8), 1 << 24, mixed_links(), costs_of("cpu"))
    once = candidates(*args)
    assert candidates(*args) is once
    again = candidates.__wrapped__(*args)
    assert [c.seconds for c in again] == [c.seconds for c in once]
    assert taken(once).name == taken(again).name


# ---------------------------------------------------------------------- explained


@pytest.mark.parametrize("network", [None, FAST, *(make() for make in SLOW)])
@pytest.mark.parametrize("name", ["psum", "all_gather", "psum_scatter", "all_to_all"])
def test_an_explanation_names_what_runs_and_fits_a_screen(network, name):
    mesh = mesh_of(2, 4)
    found = jc.explain_choice(name, nbytes=4 * LONG, mesh=mesh, topology=network)
    lines = str(found).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if "<- runs" in line]
    assert lines[-1].startswith(f"runs {found.chosen.name}: ")
    assert f"times: {found.costs.said}" in lines
    with jc.use_topology(network):
        stated = jc.explain_choice(name, nbytes=4 * LONG, mesh=mesh)
        assert str(stated) == str(found)
        if name != "psum":
            return
        step = sharded(lambda v: jc.psum(v, ("x", "y")), mesh, P(("x", "y")), P())
        runs = step.lower(long_operand()).as_text()
    is_scheduled = "stablehlo.collective_permute" in runs
    assert is_scheduled == (found.chosen.name != "jax.lax")


SLICES = np.random.default_rng(3).integers(0, 9, (8, 8)).astype(np.int64)


@pytest.mark.parametrize(("network", "hot"), [(FAST, 8), *((make(), 400) for make in SLOW[:2])])
def test_unequal_slices_are_explained_by_what_runs(network, hot):
    """Of rows of a KiB: padded, or by a schedule where one pair has many more."""
    mesh, width, largest = mesh_of(8), 256, SLICES.copy()
    largest[2, 5] = hot
    between = np.where(np.eye(8, dtype=bool), 0, largest)
    fullest = max(between.sum(0).max(), between.sum(1).max())
    nbytes = int(fullest) * 4 * width
    found = jc.explain_choice(
        "ragged_all_to_all", nbytes=nbytes, largest=largest, mesh=mesh, topology=network
    )
    text = str(found)
    assert f"of up to {nbytes:,} B, {np.count_nonzero(between)} of 56 pairs" in text
    assert f"pads them to {8 * between.max() * 4 * width:,} B" in text

    def call(x, sizes):
        me = jax.lax.axis_index("x")
        starts = jnp.cumsum(sizes, axis=1) - sizes
        there = (jnp.cumsum(sizes, axis=0) - sizes)[me]
        room = jnp.zeros((int(largest.sum(axis=0).max()), width), x.dtype)
        return jc.ragged_all_to_all(
            x, room, starts[me], sizes[me], there, sizes[:, me],
            axis_name="x", largest=largest, check=False,
        )  # fmt: skip

    rows = jax.ShapeDtypeStruct((8 * int(largest.sum(axis=1).max()), width), jnp.float32)
    sizes = jax.ShapeDtypeStruct((8, 8), jnp.int32)
    with jc.use_topology(network):
        step = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x")))
        text = step.lower(rows, sizes).as_text()
    is_padded = f"tensor<8x{between.max()}x{width}xf32>" in text and "all_to_all" in text
    assert is_padded == found.chosen.is_native == (hot < 100)


def test_a_sum_over_a_wire_is_explained_by_its_halves():
    """Both are priced by the bytes of the wire, a row for each rank."""
    network, wire = FAST, "float8_e4m3fn"
    found = jc.explain_choice(
        "psum", nbytes=4 * LONG, mesh=mesh_of(8), topology=network, wire_dtype=wire
    )
    sent = 8 * jc.execute.wires.wire_of(wire).nbytes(LONG // 8)
    assert found.then is not None
    halves = found, found.then
    for half, kind in zip(halves, ("all_to_all", "all_gather"), strict=True):
        alone = jc.explain_choice(kind, nbytes=sent, mesh=mesh_of(8), topology=network)
        assert (half.collective.kind, half.nbytes) == (kind, sent)
        assert half.chosen.name == alone.chosen.name
    assert found.seconds == sum(half.chosen.seconds for half in halves)
    assert f"all_reduce of {4 * LONG:,} B, of which {sent:,} B are sent" in str(found)
    for kind in ("psum_scatter", "all_gather", "all_to_all"):
        assert jc.explain_choice(kind, nbytes=8, mesh=mesh_of(8), wire_dtype=wire).then is None


def test_an_explanation_along_one_axis_and_with_a_table():
    mesh = mesh_of(2, 4)
    found = jc.explain_choice("all_reduce", nbytes=1 << 10, mesh=mesh, axis_name="y", topology=FAST)
    assert found.collective.groups == jc.mesh.axis_groups(mesh, "y")
    assert "2 groups at once" in str(found)
    assert "table" not in str(found)
    with use():
        assert "a table of tuning is in use" in str(
            jc.explain_choice("all_reduce", nbytes=1 << 10, mesh=mesh)
        )


RAGGED = {"collective": "ragged_all_to_all", "largest": SLICES}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"collective": "sum"}, "collective"),
        ({"collective": "broadcast"}, "collective"),
        ({"nbytes": 0}, "nbytes"),
        ({"mesh": 8}, "mesh"),
        ({"axis_name": "q"}, "axis_name must be one or more axes of the mesh"),
        ({"topology": topologies.ring(3)}, "has 3 ranks, the axes 8 and the mesh 8 devices"),
        ({"execution": "gpu"}, "costs are for 'gpu'"),
        ({"largest": SLICES}, "largest= goes with 'ragged_all_to_all' alone"),
        ({"collective": "ragged_all_to_all"}, "largest= goes with 'ragged_all_to_all' alone"),
        ({**RAGGED, "largest": SLICES[:7]}, "largest must be a matrix of 8 x 8"),
        ({**RAGGED, "largest": -SLICES}, "largest must be a matrix of 8 x 8"),
        ({**RAGGED, "largest": np.eye(8, dtype=int)}, "no rows for other ranks"),
        (RAGGED, "none is known: give topology="),
        ({"wire_dtype": "int8"}, "needs a seed"),
    ],
)
def test_what_cannot_be_explained_is_refused(arguments, said):
    given = {"collective": "psum", "nbytes": 8, "mesh": mesh_of(8), **arguments}
    with pytest.raises(CollectiveError, match=said):
        jc.explain_choice(given.pop("collective"), **given)


def test_between_processes_an_all_to_all_of_lax_is_one_step():
    """Each rank sends a part over each of its links at once, where permutes take turns."""
    nbytes, speed = 4 << 20, 1e7
    network = topologies.fully_connected(4, alpha=0, bandwidth=speed)
    what = Collective("all_to_all", 4)
    costs = shipped_costs("cpu", 4)
    found = {each.name: each for each in candidates(what, nbytes, network, costs)}
    part = nbytes / 4 / speed
    # Between no pair taking turns and all.
    assert found["jax.lax"].links == pytest.approx(1.5 * part)
    # Around by one, two, which pairs do both ways, and three.
    assert found["direct"].links == pytest.approx(4 * part)


def test_columns_do_not_run_together_above_a_second():
    slow = topologies.ring(4, bandwidth=1e7)
    told = str(jc.explain_choice("psum", nbytes=10**10, topology=slow, execution="processes"))
    table = told.split("\n\n")[1].splitlines()[1:15]
    times = [re.findall(r" ([\d,]+\.\d+ (?:s|us))(?= )", row) for row in table]
    assert {len(row) for row in times} == {3}
    assert times[0][0] == "1,500.000 s"


def test_without_a_mesh_the_machine_and_its_network_are_stated():
    hosts = topologies.dgx_h100(2)
    told = jc.explain_choice("psum", nbytes=2**20, topology=hosts, execution="gpu")
    assert told.costs == costs_of("gpu")
    assert (told.topology, told.collective) == (hosts, Collective("all_reduce", 16))
    assert [each.seconds for each in told.candidates] == sorted(
        each.seconds for each in candidates(told.collective, 2**20, hosts, told.costs)
    )
    with jc.use_topology(hosts, execution="gpu"):
        assert jc.explain_choice("psum", nbytes=2**20).candidates == told.candidates
    halves: list[dict[str, Any]] = [{"topology": hosts}, {"execution": "gpu"}, {}]
    for given in halves:
        with pytest.raises(CollectiveError, match="mesh= is left out; give it, or both topol"):
            jc.explain_choice("psum", nbytes=2**20, **given)
    with pytest.raises(CollectiveError, match="left out, of which axis_name= would"):
        jc.explain_choice("psum", nbytes=1, topology=hosts, execution="gpu", axis_name="i")


def test_charges_that_nobody_measured_take_a_wider_margin():
    """Of GPUs they are guesses, which a tenth of a predicted gain does not outweigh."""
    gpu, hosts = costs_of("gpu"), topologies.dgx_h100(2)
    assert gpu is not None
    measured = dataclasses.replace(gpu, machine="gpu: H100, jax 0.12")
    assert (margin_of(gpu, hosts), margin_of(measured, hosts)) == (MARGIN, MARGIN_IN_ORDER)
    processes = costs_of("processes")
    assert processes is not None
    assert (margin_of(processes, hosts), margin_of(processes, None)) == (MARGIN_IN_ORDER, MARGIN)


def test_played_links_of_gpus_have_a_price_of_their_own():
    """Each link works by itself and nothing is copied, but NCCL's own collectives cost the same."""
    groups, played, hosts = costs_of("gpu"), costs_of("gpu-links"), topologies.dgx_h100(2)
    assert groups is not None
    assert played is not None
    assert (shipped_costs("gpu", 1), shipped_costs("gpu", 1, has_links=True)) == (groups, played)
    assert (played.order, played.of_native.order) == (LINKS, groups.order)
    what = Collective("all_reduce", 16)
    assert lax_seconds(hosts, what, 1e9, played) == lax_seconds(hosts, what, 1e9, groups)
    schedule = jc.synthesize(hosts, "all_reduce", "forestcoll", chunks=16)
    times = [jc.simulate(schedule, 1e9, execution=each).time for each in (groups, played)]
    assert times[1] < 0.7 * times[0]


@pytest.mark.parametrize(
    ("platform", "lowering", "plays"),
    [
        ("cuda", "links", True),
        ("cuda", "auto", False),
        ("cuda", "ssa", False),
        ("tpu", "links", False),
    ],
)
def test_gpus_play_links_only_where_a_call_names_them(monkeypatch, platform, lowering, plays):
    asked = []

    def refusal(dtype, op, axes, is_gpu):
        asked.append(is_gpu)
        return ""

    monkeypatch.setattr(stated.links, "refusal", refusal)
    monkeypatch.setattr(stated.jax_internals, "platform", lambda: platform)
    axes = Axes(("i",), (4,), ("i",), ("i",))
    found = stated.may_play(axes, jnp.dtype("float32"), "all_reduce", "sum", lowering)
    assert (found, asked) == (plays, [True] * plays)
