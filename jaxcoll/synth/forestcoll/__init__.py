"""ForestColl: schedules of optimal throughput on any network (dissertation, Chapter 4)."""

from jaxcoll.synth.forestcoll.stages import forest
from jaxcoll.synth.forestcoll.synthesizer import ForestColl

__all__ = ["ForestColl", "forest"]
