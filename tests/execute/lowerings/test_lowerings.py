"""One list of cases for all lowerings: every collective, on schedules of every shape."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

from jaxcoll.errors import CollectiveError
from jaxcoll.execute.layout import Axes, Setting
from jaxcoll.execute.lowerings import pallas, scan
from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.execute.primitives import LOWERINGS, bind
from jaxcoll.kinds import NAMES
from tests.execute.harness import expected, integers, mesh_of, schedule_of, sharded
from tests.execute.lowerings.player import is_compiled

GROUPS = ((0, 4, 1), (5, 3, 2), (7, 6, 8))

# (network, synthesizer, chunks, ranks, groups)
GATHERS = [
    ("ring", "ring", 1, 6, None),
    ("one-way", "tacos", 2, 6, None),
    ("torus", "bucket", 4, 6, None),
    ("torus", "bucket", 1, 6, None),
    ("mesh", "tacos", 2, 6, None),
    ("complete", "direct", 1, 6, None),
    ("ring", "ring", 1, 9, GROUPS),
]
ROOTED = [
    ("complete", "direct", 2, 6, None),
    ("mesh", "hops", 1, 6, None),
    ("ring", "hops", 2, 6, None),
    ("ring", "hops", 1, 9, GROUPS),
]
# Those that all synthesizers derive have the same cases.
GATHERED = ("all_gather", "reduce_scatter", "all_reduce", "reduce_to_some")
ROOTS = {"reduce_to_some": (0, 1), **dict.fromkeys(("broadcast", "reduce", "gather", "scatter"), 1)}
CASES = [(kind, *case) for kind in NAMES for case in (GATHERS if kind in GATHERED else ROOTED)]
# Off TPU "pallas" is "auto", which is one of the two others: once for each collective.
WITH_ALL_NAMES = [(kind, *(GATHERS if kind in GATHERED else ROOTED)[0]) for kind in NAMES]


def run(kind, schedule, n, *lowerings, dtype=jnp.float32):
    """An input a rank, and the jitted function of it by each of some lowerings."""
    program = permute_program(schedule)
    lead = 3 if program.blocks[0] == 1 else 3 * program.group_size
    x = integers((n, lead, 5), dtype, seed=1)
    axes = Axes(("x",), (n,), ("x",))

    def body(v):
        return [bind(v[0], axes, schedule, lowering=lowering)[None] for lowering in lowerings]

    return x, sharded(body, mesh_of(n), P("x"), P("x"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:5])))
@pytest.mark.in_every_run(
    "*-complete-direct-2-6",
    "*-ring-ring-1-6",
    "all_gather-*",
    "reduce_scatter-torus-bucket-4-6",
    "all_reduce-mesh-tacos-2-6",
    "all_reduce-ring-ring-1-9",
    "broadcast-ring-hops-2-6",
    "reduce-ring-hops-1-9",
    "gather-mesh-hops-1-6",
    "all_to_all-ring-hops-1-9",
)
def test_against_numpy(case):
    kind, network, synthesizer, chunks, n, groups = case
    schedule = schedule_of(network, n, kind, synthesizer, chunks, groups, ROOTS.get(kind))
    known = [name for name in LOWERINGS if name != "links" or is_compiled()]
    lowerings = known if case in WITH_ALL_NAMES else ["ssa", "scan"]
    x, function = run(kind, schedule, n, *lowerings)
    want = expected(schedule.collective, x)
    for lowering, got in zip(lowerings, function(x), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=lowering)


def permutes(function, x) -> int:
    """Permutes in the lowered program; loop bodies count once."""
    return function.lower(x).as_text().count("collective_permute")


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_ssa_has_a_permute_a_round(kind):
    schedule = schedule_of("mesh", 8, kind, "tacos", 2)
    x, function = run(kind, schedule, 8, "ssa")
    assert permutes(function, x) == permute_program(schedule).num_permutes


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_scan_is_as_long_for_any_number_of_steps(kind):
    sizes = []
    for chunks in (3, 15):
        schedule = schedule_of("ring", 8, kind, "tacos", chunks)
        x, function = run(kind, schedule, 8, "scan")
        assert permutes(function, x) == sum(map(len, scan.stages(permute_program(schedule)))) == 2
        # Tables grow, code does not.
        sizes.append(len(function.lower(x).as_text().splitlines()))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("case", "chosen"),
    [
        (("torus", 8, "all_gather", "bucket", 2), "ssa"),
        (("mesh", 8, "all_gather", "tacos", 2), "scan"),  # ranks do unlike things
        (("ring", 8, "all_gather", "tacos", 32), "scan"),  # more than 128 rounds
    ],
)
def test_the_lowering_that_is_chosen(case, chosen):
    schedule = schedule_of(*case)
    x, function = run("all_gather", schedule, 8, "auto")
    assert ("stablehlo.while" in function.lower(x).as_text()) == (chosen == "scan")


@pytest.mark.parametrize(
    ("case", "lowering"), [(("torus", "bucket", 2), "ssa"), (("mesh", "tacos", 4), "auto")]
)
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_no_copies_of_the_whole_buffer(case, lowering, kind):
    network, synthesizer, chunks = case
    schedule = schedule_of(network, 8, kind, synthesizer, chunks)
    size = 8 * 1024
    axes = Axes(("x",), (8,), ("x",))
    f = sharded(lambda v: bind(v, axes, schedule, lowering=lowering), mesh_of(8), P("x"), P("x"))
    shape = (size if kind == "all_gather" else 8 * size,)
    compiled = f.lower(jax.ShapeDtypeStruct(shape, jnp.float32)).compile()
    copies = str(compiled.as_text()).count(f"f32[{size}]{{0}} copy(")
    # A loop that adds to an input copies it once, so as not to write to it.
    assert copies <= (kind == "reduce_scatter" and lowering == "auto")
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes <= 4 * size * 1.25


@pytest.mark.parametrize("lowering", ["ssa", "scan"])
def test_no_collective_but_permutes(lowering):
    schedule = schedule_of("torus", 8, "all_reduce", "bucket", 2)
    x, function = run("all_reduce", schedule, 8, lowering)
    text = str(function.lower(x).compile().as_text())
    assert " collective-permute(" in text
    assert not any(f" {op}(" in text for op in ("all-reduce", "all-gather", "reduce-scatter"))


# ---------------------------------------------------------------------- the kernel

# Four ranks are enough to forward rows; the interpreter takes seconds for every rank.
KERNELS = [
    ("all_gather", "torus", "bucket", 1, 4, None),
    ("reduce_scatter", "mesh", "bucket", 1, 4, None),
    *(
        pytest.param((kind, *case), marks=pytest.mark.slow)
        for kind in NAMES
        for case in [GATHERS[3] if kind in GATHERED else ROOTED[1]]
    ),
    pytest.param(("all_reduce", *GATHERS[6]), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("case", KERNELS, ids=lambda case: "-".join(map(str, case[:5])))
def test_pallas_in_the_interpreter_without_races(case):
    kind, network, synthesizer, chunks, n, groups = case
    schedule = schedule_of(network, n, kind, synthesizer, chunks, groups, ROOTS.get(kind))
    program, axes, width = permute_program(schedule), Axes(("x",), (n,), ("x",)), 150
    x = integers((n, program.input_rows().shape[1] * width), jnp.float32)
    interpreter = pltpu.InterpretParams(detect_races=True)

    def body(v):
        return pallas.run(program, v[0], Setting(axes, width, "cpu"), interpreter)[None]

    got = sharded(body, mesh_of(n), P("x"), P("x"), check_vma=False)(x)
    np.testing.assert_array_equal(got, expected(schedule.collective, x))
    races = interpret_pallas_call.races
    assert races is not None
    assert not races.races_found


@pytest.mark.parametrize("names", [("x",), ("y", "x")])
@pytest.mark.in_every_run("names1")
def test_pallas_on_axes_of_a_mesh(names):
    mesh = mesh_of(2, 2)
    n = 2 * len(names)
    schedule = schedule_of("complete", n, "all_gather", "direct")
    axes = Axes(names, (2,) * len(names), tuple(sorted(names)))
    x = integers((2, 2, 1024), jnp.int32)

    def both(v):
        v = v.reshape(-1)
        ours = pallas.run(permute_program(schedule), v, Setting(axes, v.size, "cpu"))
        return ours[None, None], lax.all_gather(v, names, tiled=True)[None, None]

    got, want = sharded(both, mesh, P("x", "y"), P("x", "y"), check_vma=False)(x)
    np.testing.assert_array_equal(got, want)


def test_what_pallas_refuses():
    program = permute_program(schedule_of("ring", 2, "all_gather", "ring"))
    axes = Axes(("x",), (2,), ("x",))
    with pytest.raises(CollectiveError, match="1 to 4 bytes, got complex64"):
        pallas.run(program, jnp.zeros(8, jnp.complex64), Setting(axes, 8, "tpu"))


def test_without_its_waits_the_kernel_fails(monkeypatch):
    # A rank then sends on rows before they have arrived.
    message = pallas._RankKernel._message

    def impatient(*arguments):
        copy = message(*arguments)
        return types.SimpleNamespace(
            start=copy.start, wait_send=copy.wait_send, wait_recv=lambda: None
        )

    monkeypatch.setattr(pallas._RankKernel, "_message", impatient)
    with pytest.raises(AssertionError):
        test_pallas_in_the_interpreter_without_races(("all_gather", "ring", "ring", 1, 4, None))
    pltpu.reset_tpu_interpret_mode_state()
