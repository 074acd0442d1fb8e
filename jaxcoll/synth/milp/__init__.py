"""Exact searches for tiny networks: integer programs whose columns are sends, solved by HiGHS.

``model`` holds the columns and rows; ``sccl`` and ``step_milp`` are the two formulations.
"""

from jaxcoll.synth.milp.step_milp import Sccl, StepMilp

__all__ = ["Sccl", "StepMilp"]
