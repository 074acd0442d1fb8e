"""The forms that lowerings take for TPU and GPU, run on CPU devices: they compute the same."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.execute import primitives
from jaxcoll.execute.layout import Axes
from jaxcoll.execute.lowerings import ssa
from jaxcoll.execute.lowerings.rounds import permute_program
from tests.execute.harness import expected, integers, mesh_of, schedule_of, sharded

N = 6
AXES = Axes(("x",), (N,), ("x",))
# (kind, network, synthesizer, chunks)
CASES = [
    ("all_gather", "mesh", "tacos", 2),
    ("all_gather", "torus", "bucket", 4),
    ("reduce_scatter", "ring", "ring", 1),
    ("reduce_scatter", "mesh", "tacos", 2),
    ("all_reduce", "torus", "bucket", 1),
    ("all_to_all", "complete", "direct", 1),
    ("broadcast", "ring", "hops", 2),
    ("gather", "mesh", "hops", 1),
]
# Trailing dimensions of a rank's operand: none, those of whole tiles, and tiles that would be cut.
# Only the form for TPU depends on them.
TRAILING = {"tpu": [(), (128,), (8, 128), (5, 128), (24, 3)], "gpu": [(), (24, 3)]}
# Of every collective one without tiles and one that is cut; all of two.
QUICK = {"tpu": [(), (5, 128)], "gpu": [(24, 3)]}
ALL = [("all_gather", "mesh", "tacos", 2), ("reduce_scatter", "ring", "ring", 1)]


@pytest.mark.parametrize("target", TRAILING)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.in_every_run(
    "all_gather-mesh-tacos-2-tpu",
    "all_gather-torus-bucket-4-gpu",
    "reduce_scatter-ring-ring-1-gpu",
    "reduce_scatter-mesh-tacos-2-tpu",
    "all_reduce-torus-bucket-1-tpu",
    "all_to_all-complete-direct-1-gpu",
    "gather-mesh-hops-1-gpu",
    "broadcast-ring-hops-2-tpu",
)
def test_same_values(case, target):
    check_same_values(case, target, (TRAILING if case in ALL else QUICK)[target])


@pytest.mark.slow
@pytest.mark.parametrize("target", TRAILING)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_same_values_of_all_tiles(case, target):
    check_same_values(case, target, TRAILING[target])


def check_same_values(case, target, trailing_dims):
    kind, network, synthesizer, chunks = case
    root = 1 if kind in ("broadcast", "gather") else None
    schedule = schedule_of(network, N, kind, synthesizer, chunks, None, root)
    lead = 16 if permute_program(schedule).blocks[0] == 1 else N * 16
    run = functools.partial(
        primitives.run, axes=AXES, schedule=schedule, invarying=False, target=target
    )
    given = [integers((N, lead, *trailing), jnp.float32, seed=2) for trailing in trailing_dims]

    def body(*operands):
        # All in one program: compiling is what takes the time.
        return [
            [run(v[0], lowering=lowering)[None] for lowering in ("ssa", "scan")] for v in operands
        ]

    results = sharded(body, mesh_of(N), P("x"), P("x"))(*given)
    for x, both in zip(given, results, strict=True):
        want = expected(schedule.collective, x)
        for got in both:
            np.testing.assert_array_equal(got, want, err_msg=str(x.shape[2:]))


@pytest.mark.parametrize("most", [3, 10**6])
def test_a_result_of_many_updates_stays_before_its_reshape(most, monkeypatch):
    monkeypatch.setattr(ssa, "MOST_UPDATES", most)
    schedule = schedule_of("torus", 8, "all_gather", "bucket", 4)
    gathered = sharded(
        lambda v: jc.all_gather(v[0], "x", schedule=schedule, lowering="ssa")[None],
        mesh_of(8),
        P("x"),
        P("x"),
        check_vma=False,
    )
    text = gathered.lower(jnp.zeros((8, 12))).as_text()
    assert ("optimization_barrier" in text) == (most == 3)
