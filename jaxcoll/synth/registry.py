"""The registry: every synthesizer by name, in the order that auto uses.

To add one, write its file and add a line here. The synthesizer itself says which of its variants
auto tries, and with how many chunks (``Synthesizer.variants``). ``synthesize``, auto, the
benchmarks, the command line and the site read this list.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxcoll.synth.building.base import Synthesizer
from jaxcoll.synth.direct_connect import Bfb
from jaxcoll.synth.forestcoll import ForestColl
from jaxcoll.synth.milp import Sccl, StepMilp
from jaxcoll.synth.patterns.bruck import Bruck
from jaxcoll.synth.patterns.cascade import BlueConnect, Cascade, Themis
from jaxcoll.synth.patterns.exchange import Exchange
from jaxcoll.synth.patterns.grid_rings import Bucket, HierarchicalRing, Ring2D
from jaxcoll.synth.patterns.halving import Halving
from jaxcoll.synth.patterns.hdrm import Hdrm
from jaxcoll.synth.patterns.rail_gather import RailGather
from jaxcoll.synth.patterns.rhd import Rhd
from jaxcoll.synth.patterns.ring import Direct, NcclRing, Ring
from jaxcoll.synth.patterns.swing import Swing
from jaxcoll.synth.patterns.trivance import Trivance
from jaxcoll.synth.routing.min_congestion import MinCongestion, VanDeGeijn
from jaxcoll.synth.routing.time_stepped import TimeStepped
from jaxcoll.synth.tacos import Tacos
from jaxcoll.synth.trees.blink import Blink, HierarchicalTree
from jaxcoll.synth.trees.earliest_tree import EarliestTree
from jaxcoll.synth.trees.joint_trees import JointTrees
from jaxcoll.synth.trees.middle_trees import MiddleTrees
from jaxcoll.synth.trees.multitree import MultiTree
from jaxcoll.synth.trees.pipeline import CCube, DoubleBinaryTree, Tto
from jaxcoll.synth.trees.striped_trees import StripedTrees

_ALL: tuple[type[Synthesizer], ...] = (
    Ring,
    NcclRing,
    Direct,
    Exchange,
    Bucket,
    Rhd,
    Trivance,
    Halving,
    Bruck,
    DoubleBinaryTree,
    HierarchicalRing,
    RailGather,
    HierarchicalTree,
    Ring2D,
    Swing,
    BlueConnect,
    Themis,
    Cascade,
    CCube,
    Tto,
    Hdrm,
    Bfb,
    MultiTree,
    MiddleTrees,
    JointTrees,
    StripedTrees,
    EarliestTree,
    Tacos,
    ForestColl,
    MinCongestion,
    TimeStepped,
    Blink,
    VanDeGeijn,
    StepMilp,
    Sccl,
)
REGISTRY: Mapping[str, type[Synthesizer]] = {each.name: each for each in _ALL}
