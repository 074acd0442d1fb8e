"""Synthesizers: from a topology and a collective to a schedule, one algorithm per file.

``entry`` is the one call, ``registry`` lists every algorithm by name, and ``auto`` tries many of
them. ``building`` holds what they share; the other folders are one family each.
"""

from jaxcoll.synth.auto import Portfolio
from jaxcoll.synth.baselines.blink import Blink
from jaxcoll.synth.baselines.blueconnect import BlueConnect
from jaxcoll.synth.baselines.bruck import Bruck
from jaxcoll.synth.baselines.bucket import Bucket
from jaxcoll.synth.baselines.c_cube import CCube
from jaxcoll.synth.baselines.direct import Direct
from jaxcoll.synth.baselines.double_binary_tree import DoubleBinaryTree
from jaxcoll.synth.baselines.halving import Halving
from jaxcoll.synth.baselines.hdrm import Hdrm
from jaxcoll.synth.baselines.hierarchical_ring import HierarchicalRing
from jaxcoll.synth.baselines.hierarchical_tree import HierarchicalTree
from jaxcoll.synth.baselines.nccl_ring import NcclRing
from jaxcoll.synth.baselines.rhd import Rhd
from jaxcoll.synth.baselines.ring import Ring
from jaxcoll.synth.baselines.ring_2d import Ring2D
from jaxcoll.synth.baselines.swing import Swing
from jaxcoll.synth.baselines.themis import Themis
from jaxcoll.synth.baselines.trivance import Trivance
from jaxcoll.synth.baselines.tto import Tto
from jaxcoll.synth.building.base import BUCKET_BYTES, Synthesizer, empty_schedule
from jaxcoll.synth.direct_connect import Bfb
from jaxcoll.synth.entry import SYNTHESIZERS, synthesize, synthesizer_named
from jaxcoll.synth.forestcoll import ForestColl, forest
from jaxcoll.synth.milp import Sccl, StepMilp
from jaxcoll.synth.orbits.listed import Orbits
from jaxcoll.synth.patterns.cascade import Cascade
from jaxcoll.synth.patterns.exchange import Exchange
from jaxcoll.synth.patterns.rail_gather import RailGather
from jaxcoll.synth.registry import REGISTRY
from jaxcoll.synth.routing.min_congestion import MinCongestion
from jaxcoll.synth.routing.open_shop import OpenShop
from jaxcoll.synth.routing.time_stepped import TimeStepped
from jaxcoll.synth.routing.van_de_geijn import VanDeGeijn
from jaxcoll.synth.tacos import Tacos
from jaxcoll.synth.trees.earliest_tree import EarliestTree
from jaxcoll.synth.trees.joint_trees import JointTrees
from jaxcoll.synth.trees.middle_trees import MiddleTrees
from jaxcoll.synth.trees.multitree import MultiTree
from jaxcoll.synth.trees.striped_trees import StripedTrees
from jaxcoll.synth.trees.timed_trees import TimedTrees

__all__ = [
    "BUCKET_BYTES",
    "REGISTRY",
    "SYNTHESIZERS",
    "Bfb",
    "Blink",
    "BlueConnect",
    "Bruck",
    "Bucket",
    "CCube",
    "Cascade",
    "Direct",
    "DoubleBinaryTree",
    "EarliestTree",
    "Exchange",
    "ForestColl",
    "Halving",
    "Hdrm",
    "HierarchicalRing",
    "HierarchicalTree",
    "JointTrees",
    "MiddleTrees",
    "MinCongestion",
    "MultiTree",
    "NcclRing",
    "OpenShop",
    "Orbits",
    "Portfolio",
    "RailGather",
    "Rhd",
    "Ring",
    "Ring2D",
    "Sccl",
    "StepMilp",
    "StripedTrees",
    "Swing",
    "Synthesizer",
    "Tacos",
    "Themis",
    "TimeStepped",
    "TimedTrees",
    "Trivance",
    "Tto",
    "VanDeGeijn",
    "empty_schedule",
    "forest",
    "synthesize",
    "synthesizer_named",
]
