"""The permutes of one step, issued together in the way each target wants it."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from jaxcoll.execute.axes import Axes

Pairs = Sequence[tuple[int, int]]

# Makes XLA put the collectives of a function that is not inlined into one NCCL group, which is one
# kernel; on its own it runs them one by one (openxla/xla#23790).
_GROUP = {"_collectives_group": "", "inlineable": "false"}


def permute_together(
    axes: Axes, sources: Sequence[jax.Array], pairs: Sequence[Pairs], target: str
) -> list[jax.Array]:
    """The rows received in each round of one step, as ``axes.permute`` gives them.

    On GPUs two rounds or more become one group, hence one launch, unless the target is
    "gpu_ungrouped". CPU and TPU know no groups; on TPU permutes that do not depend on each other
    are in flight together as they are.

    Args:
        sources: the rows that this rank sends in each round.
        pairs: who sends to whom in each round.
        target: "cpu", "gpu", "gpu_ungrouped" or "tpu".
    """

    def permute_all(*values):
        return [axes.permute(v, p) for v, p in zip(values, pairs, strict=True)]

    if target != "gpu" or len(sources) < 2:
        return permute_all(*sources)
    with set_xla_metadata(**_GROUP):
        return jax.jit(permute_all)(*sources)
