"""The runtimes that read MSCCL XML, and what each of them takes.

From their sources: microsoft/msccl (September 2023), Azure/msccl-executor-nccl (December 2024) and
RCCL 2.27.7 (ROCm 7.2). RCCL removed its runtime in April 2026 (ROCm/rocm-systems#4340), so programs
for it are read and proved, and not written. All three share a parser that keeps the elements of one
GPU only: ``algo``, every ``gpu``, and its own blocks and steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxcoll.errors import FormatError
from jaxcoll.numerics import checks

MOST_ELEMENTS, MOST_CHARACTERS = 4095, 255


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A runtime's limits.

    Attributes:
        name: of the dialect.
        instructions: of a block.
        blocks: of a rank.
        channels: of a program.
        reduce_scatter: how it spells the collective.
    """

    name: str
    instructions: int
    blocks: int
    channels: int
    reduce_scatter: str


RUNTIMES: Mapping[str, Runtime] = {
    "msccl": Runtime("msccl", 256, 216, 32, "reduce_scatter"),
    "azure": Runtime("azure", 256, 1024, 32, "reducescatter"),
    "rccl": Runtime("rccl", 64, 64, 128, "reducescatter"),
}
# The most that any of them takes: more is read by none.
MOST_INSTRUCTIONS = max(each.instructions for each in RUNTIMES.values())
MOST_BLOCKS = max(each.blocks for each in RUNTIMES.values())
MOST_CHANNELS = max(each.channels for each in RUNTIMES.values())


def written_for(dialect: object) -> Runtime:
    """The runtime of a dialect that is written.

    Raises:
        FormatError: another one; of RCCL, with the version that removed it.
    """
    if isinstance(dialect, str) and dialect == "rccl":
        raise FormatError(
            "RCCL removed its MSCCL runtime after ROCm 7.2 (ROCm/rocm-systems#4340), so programs "
            "are not written for it; take dialect='azure', which older ones read within 64 steps"
        )
    return RUNTIMES[checks.choice(dialect, ("msccl", "azure"), "dialect", FormatError)]
