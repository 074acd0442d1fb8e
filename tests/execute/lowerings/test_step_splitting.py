"""Steps cut into pieces: the same sends in the same order, fewer at a time."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxcoll import Collective, synthesize, topologies
from jaxcoll.execute import primitives
from jaxcoll.execute.layout import Axes
from jaxcoll.execute.lowerings import ssa
from jaxcoll.execute.lowerings.rounds import permute_program, split_long_steps
from jaxcoll.execute.lowerings.scan import stages
from tests.execute.harness import mesh_of

TORUS = topologies.torus(4, 4, 4)


def program(kind: str, chunks: int, synthesizer: str):
    return permute_program(synthesize(TORUS, Collective(kind, 64, chunks), synthesizer))


def sends(program) -> list[tuple]:
    """Every send as (sender, receiver, row there, row here, whether it adds), step by step."""
    found = []
    for rounds in program.steps:
        for r in rounds:
            for u, v in r.pairs:
                for c in np.flatnonzero(r.send[u] >= 0):
                    found.append((u, v, int(r.send[u, c]), int(r.recv[v, c]), bool(r.add[v, c])))
    return found


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("chunks", [1, 6])
def test_cut(kind, chunks):
    whole = program(kind, chunks, "bucket")
    cut = split_long_steps(whole)
    assert len(cut.steps) > len(whole.steps)
    assert sorted(sends(cut)) == sorted(sends(whole))
    for rounds in cut.steps:
        assert sum(r.size for r in rounds) <= max(len(rounds), whole.num_rows / 10)
    # Every link that a step uses is used by all pieces of it.
    assert {len(rounds) for rounds in cut.steps} == {len(rounds) for rounds in whole.steps}
    assert split_long_steps(cut) is cut


def test_nothing_to_cut():
    whole = program("all_gather", 1, "tacos")
    assert split_long_steps(whole) is whole


def test_stages_do_not_send_more():
    # One dimension after another: steps of the same size, but along other links.
    cut = split_long_steps(program("all_gather", 1, "bucket"))
    slots = [len(stage) for stage in stages(cut)]
    assert max(slots) == 2
    assert sum(n * len(s[0].send) for n, s in zip(slots, stages(cut), strict=True)) <= 34


@pytest.mark.parametrize("nbytes", [ssa.UNCUT_BYTES, ssa.UNCUT_BYTES + 4 * 4096])
def test_small_buffers_are_sent_uncut(nbytes):
    schedule = synthesize(topologies.torus(2, 4), Collective("all_reduce", 8), "bucket")
    whole = permute_program(schedule)
    axes = Axes(("x",), (8,), ("x",))

    def run(x):
        return primitives.run(
            x, axes=axes, schedule=schedule, lowering="ssa", invarying=False, target="tpu"
        )

    mapped = jax.shard_map(run, mesh=mesh_of(8), in_specs=P("x"), out_specs=P("x"))
    shape = jax.ShapeDtypeStruct((8 * nbytes // 4,), np.float32)
    permutes = str(jax.make_jaxpr(mapped)(shape)).count("ppermute[")
    expected = whole if nbytes <= ssa.UNCUT_BYTES else split_long_steps(whole)
    assert permutes == expected.num_permutes
    assert split_long_steps(whole).num_permutes > whole.num_permutes
