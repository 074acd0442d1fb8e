"""The throughput of a schedule from the load of its links, without latency and waiting."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jaxcoll.collective import common_parts
from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule


def steady_seconds(schedule: Schedule) -> Fraction:
    """Seconds per byte of a rank's buffer on the link that is busy longest, exact.

    No run of the schedule is faster, and one with many pipeline segments may come close: the
    throughput that schedules of trees are compared by (dissertation on ForestColl, Fig. 4.14).
    """
    checks.instance(schedule, Schedule, "schedule", ScheduleError)
    weight, total = common_parts(schedule.collective)
    on_edge = np.zeros(len(schedule.edges), np.int64)
    np.add.at(on_edge, schedule.edge, weight[schedule.chunk])
    load = np.zeros(schedule.topology.num_links, np.int64)
    np.add.at(load, schedule.edges.path_link, np.repeat(on_edge, schedule.edges.hops))
    speed = schedule.topology.exact_bandwidth
    times = (Fraction(int(x)) / b for x, b in zip(load, speed, strict=True))
    return max(times, default=Fraction(0)) / total
