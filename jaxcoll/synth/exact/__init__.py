"""Exact searches for tiny networks: integer programs over sends, solved by HiGHS."""

from jaxcoll.synth.exact.sccl import Sccl
from jaxcoll.synth.exact.step_milp import StepMilp

__all__ = ["Sccl", "StepMilp"]
