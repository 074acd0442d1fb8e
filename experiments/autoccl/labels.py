"""The kinds of rows of studies of AutoCCL."""

from __future__ import annotations

from typing import Literal

Label = Literal["measured here", "modelled", "needs NCCL"]

# Timed or counted on this machine.
MEASURED: Label = "measured here"
# Follows from the paper's equations or settings, or from a model fitted to its printed numbers.
MODELLED: Label = "modelled"
# Only GPUs with NCCL can show it: the row holds the paper's number alone.
NEEDS_NCCL: Label = "needs NCCL"
LABELS = (MEASURED, MODELLED, NEEDS_NCCL)
