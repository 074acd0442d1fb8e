"""The least that a machine charges for any schedule of a collective.

``ExecutionCosts`` charges rounds, steps, and the bytes that the busiest rank receives and adds, or
that all ranks do where they share a host. Each of these has a least amount: rounds and a step by
``ExecutionCosts.least_seconds``; each rank receives the data that it needs; all ranks receive what
has to be sent, a byte once for each rank that it has to come to, and the busiest of n ranks the
n-th part of that at least. To add up the contributions of g ranks takes g - 1 additions, wherever
they are made.
"""

from __future__ import annotations

from jaxcoll.bounds.in_order import Work
from jaxcoll.collective import Collective
from jaxcoll.simulation.execution_costs import ExecutionCosts


def least_charge(costs: ExecutionCosts, what: Collective, nbytes: float) -> float:
    """Seconds that a machine charges for every schedule.

    Args:
        nbytes: bytes of a rank's buffer.
    """
    work, share = Work.of(what, nbytes), 1 if costs.shared else what.num_ranks
    received = max(work.total / share, float(work.received.max(initial=0.0)))
    added = 0.0
    if what.traits.copies_sums:
        added = nbytes * sum(len(group) - 1 for group in what.groups) / share
    elif what.is_reducing:  # all that is sent
        added = work.total / share
    rounds = float(costs.least_seconds(what))
    return rounds + received * costs.copied + added * costs.added
