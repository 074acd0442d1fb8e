"""Synthesizers, one algorithm a file: from a topology and a collective to a schedule."""

from jaxcoll.synth.base import Synthesizer, empty_schedule
from jaxcoll.synth.blink import Blink
from jaxcoll.synth.blueconnect import BlueConnect
from jaxcoll.synth.bruck import Bruck
from jaxcoll.synth.bucket import Bucket
from jaxcoll.synth.c_cube import CCube
from jaxcoll.synth.cascade import Cascade
from jaxcoll.synth.direct import Direct
from jaxcoll.synth.double_binary_tree import DoubleBinaryTree
from jaxcoll.synth.entry import SYNTHESIZERS, synthesize, synthesizer_named
from jaxcoll.synth.exact import Sccl, StepMilp
from jaxcoll.synth.forestcoll import ForestColl, forest
from jaxcoll.synth.hdrm import Hdrm
from jaxcoll.synth.hierarchical_ring import HierarchicalRing
from jaxcoll.synth.min_congestion import MinCongestion
from jaxcoll.synth.multitree import MultiTree
from jaxcoll.synth.portfolio import Portfolio
from jaxcoll.synth.registry import BUCKET_BYTES, REGISTRY
from jaxcoll.synth.rhd import Rhd
from jaxcoll.synth.ring import Ring
from jaxcoll.synth.ring_2d import Ring2D
from jaxcoll.synth.swing import Swing
from jaxcoll.synth.tacos import Tacos
from jaxcoll.synth.themis import Themis
from jaxcoll.synth.tto import Tto

__all__ = [
    "BUCKET_BYTES",
    "REGISTRY",
    "SYNTHESIZERS",
    "Blink",
    "BlueConnect",
    "Bruck",
    "Bucket",
    "CCube",
    "Cascade",
    "Direct",
    "DoubleBinaryTree",
    "ForestColl",
    "Hdrm",
    "HierarchicalRing",
    "MinCongestion",
    "MultiTree",
    "Portfolio",
    "Rhd",
    "Ring",
    "Ring2D",
    "Sccl",
    "StepMilp",
    "Swing",
    "Synthesizer",
    "Tacos",
    "Themis",
    "Tto",
    "empty_schedule",
    "forest",
    "synthesize",
    "synthesizer_named",
]
