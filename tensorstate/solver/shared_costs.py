"""Costs that several variables of a linear program share, which are split until that is wrong.

A step that several flows take is paid for once: it costs the largest of them, which takes a
variable, and a row for every flow. In a program of all reshards these are three of five rows, of
which hardly any bind. Where all steps cost about the same, as of small tensors, they take most of
the time: a ViT on 2x4 devices took 40 CPU s with them and 2 without.

So at first every flow pays its equal part of a step. The parts sum up to at most the largest, so
that bounds hold; and to the largest where flows are equal, as they mostly are. The variables and
rows follow where they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class SharedCosts(NamedTuple):
    """Costs whose flows belong together: those of one route of a tensor.

    Attributes:
        costs: of every step, of shape (steps,).
        flows: variables, of shape (steps, flows).
    """

    costs: np.ndarray
    flows: np.ndarray

    def lacking(self, values: np.ndarray) -> float:
        """The costs of the largest flows beyond the parts that are paid."""
        # Paid are the costs of the mean, which is at most the largest; equal where all flows are.
        flows = values[self.flows]
        return float(self.costs @ (flows.max(axis=1) - flows.mean(axis=1)))


def most_lacking(
    pending: Sequence[SharedCosts], values: np.ndarray, allowed: float, least: float
) -> list[int]:
    """The fewest of these, by number, without which the others lack at most what is allowed.

    Args:
        least: what lacks less is exact.
    """
    lacking = np.array([shared.lacking(values) for shared in pending])
    if lacking.sum() <= max(allowed, least):
        return []
    # The largest first: each that is shared adds variables and rows for good.
    order = np.argsort(-lacking, kind="stable")
    # Costs that are lacking still once these are shared.
    left = lacking.sum() - np.cumsum(lacking[order])
    count = int(np.count_nonzero(left > allowed)) + 1
    return [int(k) for k in order[:count] if lacking[k] > least]
