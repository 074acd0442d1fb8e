"""How operands are cut into lines: every element once, and every shard in equal parts."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from jaxcoll.execute import layout, primitives
from jaxcoll.execute.layout import Axes
from tests.execute.harness import expected, integers, mesh_of, schedule_of, sharded

SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), max_size=3).map(tuple)
WAYS = st.sampled_from([(), (2,), (4,), (2, 3), (2, 2)])


# Every shape is compiled separately.
@settings(max_examples=10)
@given(SHAPES, WAYS, st.integers(1, 5), st.integers(1, 3))
def test_what_is_packed_is_unpacked(shape, ways, rows, blocks):
    x = np.arange(blocks * math.prod(shape)).reshape(blocks, *shape)
    for laid in (layout.flat(shape, rows), layout.keeping_shards(shape, rows, ways)):
        lines = laid.pack(jnp.asarray(x), blocks)
        assert lines.shape[0] == blocks * rows * laid.width
        np.testing.assert_array_equal(laid.unpack(lines, blocks, x.shape), x)


@settings(max_examples=10)
@given(SHAPES, WAYS, st.integers(1, 5))
def test_every_line_has_an_equal_part_of_every_shard(shape, ways, rows):
    laid = layout.keeping_shards(shape, rows, ways)
    counts = {math.prod(ways[i] for i in range(len(ways)) if mask >> i & 1) for mask in range(8)}
    for d, size in enumerate(shape):
        for parts in counts:
            if size % parts:
                continue
            owner = np.arange(size) // (size // parts)
            owners = np.moveaxis(np.broadcast_to(owner, (*shape[:d], *shape[d + 1 :], size)), -1, d)
            lines = np.asarray(laid.pack(jnp.asarray(owners), 1))[: laid.lines]
            for line in lines.reshape(laid.lines, -1):
                found = np.bincount(line, minlength=parts)
                assert (found == line.size // parts).all()


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
@pytest.mark.parametrize("lowering", ["ssa", "scan"])
@pytest.mark.in_every_run(
    "ssa-all_reduce", "scan-all_gather", "ssa-reduce_scatter", "scan-all_to_all"
)
def test_rows_of_one_line_as_for_symbolic_sizes(kind, lowering, monkeypatch):
    # JAX cannot run what it exports with symbolic sizes inside shard_map; this is what it would.
    schedule = schedule_of("ring", 4, kind, "direct" if kind == "all_to_all" else "tacos", 3)
    x = integers((4, 1 if kind == "all_gather" else 4, 5, 7), jnp.float32)
    axes = Axes(("x",), (4,), ("x",))

    def body(v):
        return primitives.run(
            v[0], axes=axes, schedule=schedule, lowering=lowering, invarying=False
        )[None]

    monkeypatch.setattr(layout.Layout, "is_symbolic", True)
    got = sharded(body, mesh_of(4), P("x"), P("x"), check_vma=False)(x)
    np.testing.assert_array_equal(got, expected(schedule.collective, x))
