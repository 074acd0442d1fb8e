"""Exact searches for tiny networks: integer programs whose columns are sends, solved by HiGHS.

``model`` holds the columns and rows; ``step_milp`` the two formulations.
"""

from jaxcoll.synth.milp.step_milp import Sccl, StepMilp

__all__ = ["Sccl", "StepMilp"]
