"""Times that no schedule can beat, proved without a schedule. Imports point up this list.

- ``times``: the public bounds of a collective's time, from distances, cuts and traffic, and those
  that take seconds;
- ``in_order``: what machines whose ranks wait for one another add to them;
- ``cuts``: sets of vertices that a network is narrow around, the data that crosses them, and the
  share of a buffer that goes from rank to rank;
- ``throughput``: the bottleneck cut, exactly (dissertation, Sec. 4.4 and 4.5.2);
- ``partitions``: the parts of a network that are narrowest together;
- ``distances``: sums of shortest distances over the capacity of the links, by lengths that show the
  narrow ones; steps, and the TACOS paper's Ideal;
- ``all_reduce_times``: data on its way to one rank, and cuts over time that bound it; an
  all_reduce's meeting places, traffic and departures;
- ``needs``: the bytes that go from rank to rank; ``symmetries``: which vertices are equivalent, so
  that bounds of thousands of ranks look at one of each;
- ``moore``: costs of schedules on direct-connect networks, and the best of a size and degree;
- ``all_reduce``: the linear program of App. B.7, and exact proofs of its answer.
"""

from jaxcoll.bounds.distances import ideal, step_bound
from jaxcoll.bounds.moore import (
    Cost,
    Optimality,
    bandwidth_optimum,
    bandwidth_with_reduction,
    bidirectional_moore_steps,
    cost,
    least_cost,
    moore_bound,
    moore_steps,
    optimality,
    reduction_cost,
)
from jaxcoll.bounds.throughput import Optimum, optimum
from jaxcoll.bounds.times import Bound, bound, cut_bound, lower_bounds

__all__ = [
    "Bound",
    "Cost",
    "Optimality",
    "Optimum",
    "bandwidth_optimum",
    "bandwidth_with_reduction",
    "bidirectional_moore_steps",
    "bound",
    "cost",
    "cut_bound",
    "ideal",
    "least_cost",
    "lower_bounds",
    "moore_bound",
    "moore_steps",
    "optimality",
    "optimum",
    "reduction_cost",
    "step_bound",
]
