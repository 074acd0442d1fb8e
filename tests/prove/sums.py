"""Schedules whose sums meet: runs of chunks that begin apart and are added in one step."""

from __future__ import annotations

from hypothesis import strategies as st

import jaxcoll as jc

Send = tuple[int, int, int, int]  # step, from, to, chunk


def reduce_scatter(ranks: int, share: int, sends: list[Send]) -> jc.Schedule:
    """The verified schedule of some sums between the ranks of a switch."""
    network = jc.topologies.switch(ranks)
    edges = jc.synthesize(network, "all_to_all", "direct").edges
    ends = zip(edges.src.tolist(), edges.dst.tolist(), strict=True)
    edge = {pair: e for e, pair in enumerate(ends)}
    step, _, _, chunk = zip(*sends, strict=True)
    made = jc.Schedule.from_sends(
        network, jc.Collective("reduce_scatter", ranks, chunks_per_shard=share), step,
        [edge[src, dst] for _, src, dst, _ in sends], chunk, [True] * len(sends), edges=edges,
    )  # fmt: skip
    jc.verify(made)
    return made


def begun_apart() -> jc.Schedule:
    """Rank 0 adds the chunks 0 and 1 of rank 1 in the step in which it adds chunk 1 of rank 2."""
    direct = [(0, src, dst, 2 * dst + i) for dst in (1, 2) for src in range(3) if src != dst
              for i in range(2)]  # fmt: skip
    return reduce_scatter(3, 2, [(0, 1, 0, 0), (0, 1, 0, 1), (0, 2, 0, 1), (1, 2, 0, 0), *direct])


@st.composite
def trees(draw: st.DrawFn) -> jc.Schedule:
    """Every chunk up a tree of its own, in any steps: many runs that begin apart meet."""
    ranks, share = draw(st.integers(3, 5)), draw(st.integers(1, 4))
    sends: list[Send] = []
    for chunk in range(ranks * share):
        owner = chunk // share
        order = draw(st.permutations([rank for rank in range(ranks) if rank != owner]))
        # From the leaves: a rank gives after all that give to it.
        after = [0] * ranks
        for i, src in enumerate(order):
            to = draw(st.sampled_from([*order[i + 1 :], owner, owner, owner]))
            step = after[src] + draw(st.sampled_from((0, 0, 0, 1)))
            sends.append((step, src, to, chunk))
            after[to] = max(after[to], step + 1)
    return reduce_scatter(ranks, share, sends)
