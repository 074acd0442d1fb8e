"""Schedules of networks that have lost something run with the values of ``jax.lax``."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import Schedule, Topology, topologies
from jaxcoll.errors import ScheduleError
from tests.execute.harness import integers, mesh_of, sharded

TORUS, LARGE = topologies.torus(2, 4), topologies.torus(4, 4)
WIRE = [(0, 1), (1, 0)]
NETWORKS: dict[str, Topology] = {
    "8 less a wire": TORUS.without(WIRE),
    "7 ranks": TORUS.without(ranks=[5]),
    "rails less one": topologies.multi_rail(2, 4).without(switches=["rail 2"]),
    "16 less a wire": LARGE.without(WIRE),
    "16, half a wire": LARGE.scaled({(0, 1): 0.5, (1, 0): 0.5}),
    "15 ranks": LARGE.without(ranks=[5]),
}
FEW = ("8 less a wire", "15 ranks")
DTYPES = (
    jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.int8, jnp.uint32, jnp.complex64,
    jnp.bool_,
)  # fmt: skip


@functools.cache
def joint(name: str, kind: str = "all_reduce", chunks: int = 2, groups=None) -> Schedule:
    what = jc.Collective(kind, NETWORKS[name].num_ranks, chunks, groups)  # type: ignore[arg-type]
    return jc.synthesize(NETWORKS[name], what, "joint_trees")


def sums(name: str, x: np.ndarray, schedule: Schedule | None, **options):
    mesh = mesh_of(NETWORKS[name].num_ranks)
    ours = functools.partial(jc.psum, schedule=schedule, **options)
    theirs = functools.partial(lax.psum, **options)
    found = [
        sharded(lambda v, psum=psum: psum(v, "x"), mesh, P("x"), P("x"), check_vma=False)(x)
        for psum in (ours, theirs)
    ]
    return [np.asarray(value) for value in found]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.in_every_run("7 ranks", "rails less one", "16, half a wire")
def test_sums_are_those_of_lax(name):
    ours, theirs = sums(name, integers((NETWORKS[name].num_ranks, 37), np.float32), joint(name))
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", [FEW[0], pytest.param(FEW[1], marks=pytest.mark.slow)])
@pytest.mark.in_every_run(
    "8 less a wire-bfloat16", "8 less a wire-int8", "8 less a wire-bool", "8 less a wire-complex64"
)
def test_of_every_dtype(name, dtype):
    n = NETWORKS[name].num_ranks
    ours, theirs = sums(name, integers((n, 5, 3), np.float32).astype(dtype), joint(name))
    assert ours.dtype == theirs.dtype
    assert np.array_equal(ours, theirs)


def test_in_groups_at_the_same_time():
    groups = ((0, 1, 4, 5), (2, 3, 6, 7))
    schedule = joint("8 less a wire", groups=groups)
    ours, theirs = sums(
        "8 less a wire", integers((8, 6), np.int32), schedule, axis_index_groups=groups
    )
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.in_every_run("8 less a wire")
def test_derivatives_are_those_of_lax(name):
    mesh, n = mesh_of(NETWORKS[name].num_ranks), NETWORKS[name].num_ranks
    x = integers((n, 6), np.float32)

    def loss(psum, v):
        return sharded(lambda w: psum(w * w, "x"), mesh, P("x"), P())(v).sum()

    ours = functools.partial(jc.psum, schedule=joint(name))
    for derivative in (jax.grad, lambda f: lambda v: jax.jvp(f, (v,), (v,))[1]):
        found, wanted = (derivative(functools.partial(loss, psum))(x) for psum in (ours, lax.psum))
        assert np.array_equal(np.asarray(found), np.asarray(wanted))


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_other_collectives(kind):
    name, x = "8 less a wire", integers((8, 16), np.float32)
    schedule = joint(name, kind)
    calls = {
        "all_gather": lambda m, v, **o: m.all_gather(v, "x", axis=1, tiled=True, **o),
        "reduce_scatter": lambda m, v, **o: m.psum_scatter(
            v, "x", scatter_dimension=1, tiled=True, **o
        ),
    }
    run = functools.partial(sharded, mesh=mesh_of(8), in_specs=P("x"), out_specs=P("x"))
    ours = run(lambda v: calls[kind](jc, v, schedule=schedule), check_vma=False)(x)
    theirs = run(lambda v: calls[kind](lax, v), check_vma=False)(x)
    assert np.array_equal(np.asarray(ours), np.asarray(theirs))


def test_on_three_explicit_axes():
    devices = np.array(jax.devices()[:8]).reshape(2, 2, 2)
    mesh = Mesh(devices, ("a", "b", "c"), axis_types=(AxisType.Explicit,) * 3)
    axes = ("a", "b", "c")
    x = integers((8, 5), np.float32)
    placed = jax.device_put(x, NamedSharding(mesh, P(axes)))
    total = sharded(
        lambda v: jc.psum(v, axes, schedule=joint("8 less a wire")), mesh, P(axes), P()
    )(placed)
    assert np.array_equal(np.asarray(total)[0], x.sum(axis=0))


# ---------------------------------------------------------------------- the stated network


def traced(schedule: Schedule | None, topology: Topology):
    with jc.use_topology(topology):
        run = sharded(lambda v: jc.psum(v, "x", schedule=schedule), mesh_of(8), P("x"), P())
        return run.lower(jax.ShapeDtypeStruct((8, 64), jnp.float32))


def test_a_schedule_of_the_whole_network_is_refused_on_what_is_left():
    whole = jc.synthesize(TORUS, "all_reduce", "joint_trees", chunks=4)
    with pytest.raises(ScheduleError, match=r"sends over .*0->1.*which the stated torus 2x4 less"):
        traced(whole, TORUS.without(WIRE))
    # What was made for it runs; so does any on the whole network, on a slow one, and one that
    # does not use the links that are down.
    for schedule, topology in (
        (joint("8 less a wire"), TORUS.without(WIRE)),
        (whole, TORUS),
        (whole, TORUS.scaled({(0, 1): 0.5})),
        (jc.synthesize(TORUS, "all_reduce", "ring"), TORUS.without([(0, 4)])),
    ):
        uses = {(int(u), int(v)) for u, v in zip(schedule.src, schedule.dst, strict=True)}
        if not uses & set(topology.losses.links):
            assert "collective_permute" in traced(schedule, topology).as_text()


def test_another_number_of_ranks_is_refused():
    with pytest.raises(ScheduleError, match="is for 8 ranks, but"):
        sharded(
            lambda v: jc.psum(v, "x", schedule=joint("8 less a wire")), mesh_of(7), P("x"), P()
        )(np.ones((7, 2), np.float32))


@dataclasses.dataclass(frozen=True)
class Chip:
    """A device of a slice, as far as its network is concerned."""

    coords: tuple[int, ...]
    device_kind: str = "TPU v5"
    platform: str = "tpu"
    process_index: int = 0


@dataclasses.dataclass(frozen=True)
class MeshOfChips:
    devices: np.ndarray


def test_from_mesh_takes_links_that_are_down():
    chips = [Chip(tuple(at)) for at in np.ndindex(4, 4, 1)]
    mesh = MeshOfChips(np.array(chips, object).reshape(4, 4))
    whole = Topology.from_mesh(mesh)
    left = whole.without(WIRE)
    assert Topology.from_mesh(mesh, down=WIRE) == left
    pair = (chips[0], chips[1])
    assert Topology.from_mesh(mesh, down=[pair, pair[::-1]]) == left
    assert left.losses.lines() == ["down: 0-1"]
    with pytest.raises(
        jc.errors.TopologyError, match=r"there is no link \(0, 5\); from vertex 0 they go"
    ):
        Topology.from_mesh(mesh, down=[(chips[0], chips[5])])
