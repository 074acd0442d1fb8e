"""Misuse ends while tracing, in an error that names what was given and what to do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxcoll
from jaxcoll import execute, synth, topologies
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from tests.execute.harness import mesh_of

jc: Any = execute  # whose types most of this would break
library: Any = jaxcoll
GROUPS = "axis_index_groups must"
CASES = {
    "integers for floats": (
        lambda v: jc.psum(v, "x", accum_dtype=jnp.int32),
        "accum_dtype=int32 cannot hold sums of float32: floats are added in a floating dtype",
    ),
    "narrower integers": (
        lambda v: jc.psum(v.astype(jnp.int16), "x", accum_dtype=jnp.int8),
        "accum_dtype=int8 cannot hold sums of int16",
    ),
    "reals for complex": (
        lambda v: jc.psum(v + 1j, "x", accum_dtype=jnp.float32),
        "accum_dtype=float32 cannot hold sums of complex64",
    ),
    "no dtype": (
        lambda v: jc.psum_scatter(v[0], "x", accum_dtype="single precision"),
        "accum_dtype must be a dtype, got 'single precision'",
    ),
    "64 bits": (
        lambda v: jc.psum(v, "x", accum_dtype=np.float64),
        "needs 64-bit types: set jax.config jax_enable_x64",
    ),
    "no groups": (lambda v: jc.psum(v, "x", axis_index_groups=[]), f"{GROUPS} name every index"),
    "no groups of constants": (
        lambda v: v * jc.pmean(1, "x", axis_index_groups=[]),
        f"{GROUPS} name every index",
    ),
    "empty groups": (
        lambda v: jc.all_gather(v, "x", axis_index_groups=[[]]),
        f"{GROUPS} name every index",
    ),
    "flat groups": (
        lambda v: jc.pmax(v, "x", axis_index_groups=[0, 1, 2, 3]),
        f"{GROUPS} be lists of indices of axis 'x' of 4, got [0, 1, 2, 3]",
    ),
    "unequal groups": (
        lambda v: jc.all_to_all(v, "x", 1, 1, axis_index_groups=[[0], [1, 2, 3]]),
        f"{GROUPS} be of equal size",
    ),
    "a class": (
        lambda v: jc.psum(v, "x", schedule=synth.Ring),
        "schedule= was the class Ring; give one of its instances",
    ),
    "a network": (
        lambda v: jc.psum(v, "x", schedule=topologies.ring(4)),
        "schedule= takes a Schedule, a TreeFlow, a synthesizer or its name",
    ),
    "a function of one": (
        lambda v: jc.psum(v, "x", schedule=lambda topology: None),
        "cannot be called with (topology, collective)",
    ),
    "a function of no network": (
        lambda v: jc.psum(v, "x", schedule=lambda t, c: library.synthesize(3, c)),
        "topology must be a Topology, got 3",
    ),
    "a lowering": (lambda v: jc.psum(v, "x", lowering=None), "unknown lowering None; known: auto"),
    "an axis": (lambda v: jc.psum(v, [["x"]]), "axis ['x'] is not bound here (bound: 'x')"),
    "a fraction of a dimension": (
        lambda v: jc.all_gather(v, "x", axis=1.0),
        "axis must be an integer, got 1.0",
    ),
    "a traced root": (
        lambda v: jc.pbroadcast(v, "x", v[0, 0].astype(int)),
        "must be an index of axis 'x' of 4, a Python integer known while tracing",
    ),
    "a word": (lambda v: jc.psum("four", "x"), "psum takes pytrees of arrays and numbers"),
    "an object": (
        lambda v: jc.all_gather(object(), "x"),
        "all_gather takes pytrees of arrays and numbers",
    ),
    "reduced": (lambda v: jc.all_gather(v, "x", to="reduced"), "use jax.lax for 'reduced'"),
    "keys": (
        lambda v: jc.pmin(jax.random.key(0), "x"),
        "pmin does not take arrays of key<fry>; unwrap them first",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("check_vma", [True, False])
def test_misuse(name, check_vma):
    function, said = CASES[name]
    mapped = jax.shard_map(
        function, mesh=mesh_of(4), in_specs=P("x"), out_specs=P("x"), check_vma=check_vma
    )
    with pytest.raises((CollectiveError, ScheduleError, TopologyError)) as refusal:
        jax.eval_shape(mapped, jax.ShapeDtypeStruct((16, 4), jnp.float32))
    assert said in str(refusal.value)


def test_misuse_of_synthesize():
    ring = topologies.ring(4)
    for call, said in (
        (lambda: library.synthesize(3, "all_reduce"), "topology must be a Topology, got 3"),
        (lambda: library.synthesize(ring, 3), "collective must be a str or a Collective, got 3"),
        (lambda: library.synth.Ring().synthesize(ring, "all_reduce"), "got 'all_reduce'"),
        (lambda: library.synthesize(ring, "all_reduce", synth.Ring), "was the class Ring"),
    ):
        with pytest.raises((CollectiveError, TopologyError), match=said):
            call()


def test_wider_sums_are_taken():
    def each(v):
        return (
            jc.psum(v.astype(jnp.bfloat16), "x", accum_dtype=jnp.float32),
            jc.psum(v, "x", accum_dtype=jnp.bfloat16),
            jc.psum(v.astype(jnp.int8), "x", accum_dtype="int32"),
        )

    mapped = jax.shard_map(each, mesh=mesh_of(4), in_specs=P("x"), out_specs=P())
    out = jax.jit(mapped)(np.ones(4, np.float32))
    assert [str(v.dtype) for v in out] == ["bfloat16", "float32", "int8"]
    assert [float(v[0]) for v in out] == [4, 4, 4]


def test_too_few_cpu_devices_are_told_how_to_make_more():
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("i",))
    schedule = synth.synthesize(topologies.ring(8), "all_reduce", "ring", chunks=1)
    call = jax.shard_map(
        lambda x: execute.psum(x, "i", schedule=schedule), mesh=mesh, in_specs=P("i"), out_specs=P()
    )
    with pytest.raises(ScheduleError, match=r'jax_num_cpu_devices", 8\) before JAX is used'):
        jax.jit(call)(jnp.ones(8))
