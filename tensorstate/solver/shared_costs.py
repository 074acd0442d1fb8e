"""Costs that several variables of a linear program share, which are split as long as possible.

A step that several flows use is paid for once: it costs the largest of them, which needs a
variable, and a row for every flow. In a program with all reshards these are three of five rows, and
hardly any of them is tight. If all steps cost about the same, as for small tensors, they take most
of the time: a ViT on 2x4 devices took 40 CPU s with them and 2 without.

So at first every flow pays an equal part of a step. The sum of the parts is at most the largest
flow, so bounds remain valid; it equals the largest if flows are equal, as they mostly are. The
variables and rows are added where they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class SharedCosts(NamedTuple):
    """Costs whose flows belong together: those of one route of a tensor.

    Attributes:
        costs: cost of every step, of shape (steps,).
        flows: variables, of shape (steps, flows).
    """

    costs: np.ndarray
    flows: np.ndarray

    def lacking(self, values: np.ndarray) -> float:
        """The costs of the largest flows minus the parts that are paid."""
        # The mean is paid, which is at most the largest flow, and equals it if all flows are equal.
        flows = values[self.flows]
        return float(self.costs @ (flows.max(axis=1) - flows.mean(axis=1)))


def most_lacking(
    pending: Sequence[SharedCosts], values: np.ndarray, allowed: float, least: float
) -> list[int]:
    """The fewest of these costs, by number, without which the others lack at most the allowed part.

    Args:
        least: shortfalls below this count as zero.
    """
    lacking = np.array([shared.lacking(values) for shared in pending])
    if lacking.sum() <= max(allowed, least):
        return []
    # The largest first: each cost that is shared adds permanent variables and rows.
    order = np.argsort(-lacking, kind="stable")
    # Costs that are still lacking once these are shared.
    left = lacking.sum() - np.cumsum(lacking[order])
    count = int(np.count_nonzero(left > allowed)) + 1
    return [int(k) for k in order[:count] if lacking[k] > least]
