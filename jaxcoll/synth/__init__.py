"""Synthesizers, one algorithm a file: from a topology and a collective to a schedule."""

from jaxcoll.synth.base import Synthesizer, empty_schedule
from jaxcoll.synth.bucket import Bucket
from jaxcoll.synth.direct import Direct
from jaxcoll.synth.entry import SYNTHESIZERS, synthesize, synthesizer_named
from jaxcoll.synth.ring import Ring
from jaxcoll.synth.tacos import Tacos

__all__ = [
    "SYNTHESIZERS",
    "Bucket",
    "Direct",
    "Ring",
    "Synthesizer",
    "Tacos",
    "empty_schedule",
    "synthesize",
    "synthesizer_named",
]
