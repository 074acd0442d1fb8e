"""Synthesizers, one algorithm a file: from a topology and a collective to a schedule."""

from jaxcoll.synth.base import Synthesizer, empty_schedule

__all__ = ["Synthesizer", "empty_schedule"]
