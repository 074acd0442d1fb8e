"""Lower bounds on the time of any schedule, proved without a schedule.

Files import only from files below them in this list.

- ``times``: the public bounds of a collective's time, from distances, cuts and traffic, and the
  exact bounds, which take seconds to compute;
- ``charges``: the least that a machine charges for any schedule;
- ``in_order``: further bounds on machines whose ranks wait for one another;
- ``cuts``: sets of vertices with little bandwidth around them, the data that crosses them, and the
  share of a buffer that goes from rank to rank;
- ``throughput``: the bottleneck cut, exactly (dissertation, Sec. 4.4 and 4.5.2);
- ``partitions``: the parts of a network that are narrowest together;
- ``distances``: sums of shortest distances over the capacity of the links, for lengths that show
  the narrow links; steps, and the TACOS paper's Ideal;
- ``all_reduce_times``: cuts over time that bound data on its way to one rank; the meeting places,
  traffic and departures of an all_reduce;
- ``needs``: the bytes that go from rank to rank; ``symmetries``: equivalent vertices, so that
  bounds of thousands of ranks examine one of each class;
- ``moore``: costs of schedules on direct-connect networks, and the best for a size and degree;
- ``all_reduce``: the linear program of App. B.7; ``all_reduce_proofs``: exact proofs of its answer.
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
