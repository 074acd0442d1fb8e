"""The least that a machine charges for any schedule of a collective.

``ExecutionCosts`` charges rounds, steps, and the bytes that the busiest rank receives and adds, or
that all ranks do where they share a host. Each of these has a least amount: rounds and a step by
``ExecutionCosts.least_seconds``; each rank receives the data that it needs; all ranks receive what
has to be sent, a byte once for each rank that it has to come to, and the busiest of n ranks the
n-th part of that at least. To add up the contributions of g ranks takes g - 1 additions, wherever
they are made.

Delays of steps are curves of the bytes that the busiest rank of a step sends or receives. Whatever
the steps are, these add up to no less than all bytes of the busiest rank, and no byte is delayed by
less than the least of delay over bytes at any size of any curve, since curves are straight between
sizes and in proportion beyond.
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
    work, ranks = Work.of(what, nbytes), what.num_ranks
    share, times = (1, ranks) if costs.shared else (ranks, 1)
    received = max(work.total / share, float(work.received.max(initial=0.0)))
    added = 0.0
    if what.traits.copies_sums:
        added = nbytes * sum(len(group) - 1 for group in what.groups) / share
    elif what.is_reducing:  # all that is sent
        added = work.total / share
    busiest = max(work.total / ranks, *(float(of.max(initial=0.0)) for of in work[:2]))
    points = (p for each in costs.delays for p in zip(each.nbytes, each.seconds, strict=True))
    delay = min((seconds / size for size, seconds in points if size > 0), default=0.0)
    charge = float(costs.least_seconds(what)) + times * busiest * delay
    return charge + received * costs.copied + added * costs.added
