"""What no schedule can beat, proved without a schedule. The arrows inside point up this list.

- ``times``: the public bounds of a collective's time, from distances, cuts and traffic;
- ``throughput``: the bottleneck cut, exactly (dissertation, Section 4.2);
- ``cut_traffic``: when links across a cut can be of use to an all_reduce;
- ``distances``: sums of shortest distances over the capacity of the links;
- ``all_reduce``: the linear program of App. B.7, with proofs in ``dual_variables``.
"""

from jaxcoll.bounds.times import Bound, bound, cut_bound, ideal, lower_bounds, step_bound

__all__ = ["Bound", "bound", "cut_bound", "ideal", "lower_bounds", "step_bound"]
