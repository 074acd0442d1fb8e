"""Schedules for direct-connect networks, whose ranks have a few links each and no switches.

- ``bfb``: Breadth-First Broadcast on any digraph, and its cost;
- ``bfb_links``: the shards of one vertex and step, and its loops over vertices;
- ``bfb_balance``: the flow of those shards over the links that may deliver them, and the least
  time of a step where links differ;
- ``group_network``, ``group_schedule``: networks of an abelian group, and schedules kept as one
  rank's tree, for up to millions of ranks;
- ``columns``, ``expansions``: all_gathers as columns of sends over arcs, their ranks renamed and
  their sends reversed, and larger networks with schedules from smaller ones;
- ``searched``: schedules of small bases that an exact search finds.
"""

from jaxcoll.synth.direct_connect.bfb import Bfb, bfb_bottlenecks, bfb_cost
from jaxcoll.synth.direct_connect.bfb_balance import bfb_times
from jaxcoll.synth.direct_connect.bfb_links import Bottleneck
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
