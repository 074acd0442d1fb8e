"""Schedules for direct-connect networks, whose ranks have a few links each and no switches.

- ``bfb``: Breadth-First Broadcast on any digraph, and its cost;
- ``bfb_steps``: BFB's jobs and links for each vertex and step, and its loops over vertices;
- ``bfb_balance``: how jobs are divided among the links that may deliver them, and the least time of
  a step if links differ;
- ``group_network``, ``group_schedule``: networks of an abelian group, and schedules stored as the
  tree of one rank, for up to millions of ranks;
- ``columns``, ``expansions``: all_gathers as columns of sends over arcs, with ranks renamed or
  sends reversed, and larger networks with schedules made from smaller ones;
- ``searched``: schedules of small bases found by an exact search.
"""

from jaxcoll.synth.direct_connect.bfb import Bfb, bfb_bottlenecks, bfb_cost
from jaxcoll.synth.direct_connect.bfb_balance import bfb_times
from jaxcoll.synth.direct_connect.bfb_steps import Bottleneck
from jaxcoll.synth.direct_connect.columns import reversed_on
from jaxcoll.synth.direct_connect.group_network import GroupNetwork
from jaxcoll.synth.direct_connect.group_schedule import GroupSchedule, group_bfb, group_cost

__all__ = [
    "Bfb",
    "Bottleneck",
    "GroupNetwork",
    "GroupSchedule",
    "bfb_bottlenecks",
    "bfb_cost",
    "bfb_times",
    "group_bfb",
    "group_cost",
    "reversed_on",
]
