"""The simulator: times schedules and any other traffic, link by link, exactly.

There are two link models, named after the simulators they come from; every result names its model.
A ``LinkModel`` with a law is a model of your own (``link_models.py``).

- ``"astra"``: a message that starts at t frees its link at t + bytes/bandwidth and arrives alpha
  later (the congestion-aware analytical backend of ASTRA-sim).
- ``"tacos"``: alpha occupies the link too, which is free again when the message arrives (TACOS,
  Sec. IV-F: one cost alpha + beta n per link).

All models may also count the heads of packets, or one head per message (``Framing``).

Messages are stored and forwarded at every vertex of their path, and every link serves first come,
first served. In addition to the links, ``ExecutionCosts`` may charge for rounds, steps and bytes.
``simulate_together`` times schedules that share wires, and ``simulate_in_network`` times
collectives whose switches copy and add (NVLS, SHARP), which schedules cannot express.
``sum_orders`` replays additions instead of times. The simulator uses only the core types, and no
synthesizer.
"""

from jaxcoll.simulation.execution_costs import ExecutionCosts, NativeCost
from jaxcoll.simulation.in_network import NetworkTree, simulate_in_network, simulate_multicast
from jaxcoll.simulation.link_models import (
    ASTRA,
    LINK_MODELS,
    MODELS,
    TACOS,
    LinkModel,
    link_model,
)
from jaxcoll.simulation.messages import Message, MessageTimes, simulate_messages
from jaxcoll.simulation.orbits import OrbitTimeline
from jaxcoll.simulation.schedules import simulate, steady_seconds, sum_orders
from jaxcoll.simulation.timeline import PACKETS, WHOLE, Clock, Framing, Timeline
from jaxcoll.simulation.together import Together, simulate_together

__all__ = [
    "ASTRA",
    "LINK_MODELS",
    "MODELS",
    "PACKETS",
    "TACOS",
    "WHOLE",
    "Clock",
    "ExecutionCosts",
    "Framing",
    "LinkModel",
    "Message",
    "MessageTimes",
    "NativeCost",
    "NetworkTree",
    "OrbitTimeline",
    "Timeline",
    "Together",
    "link_model",
    "simulate",
    "simulate_in_network",
    "simulate_messages",
    "simulate_multicast",
    "simulate_together",
    "steady_seconds",
    "sum_orders",
]
