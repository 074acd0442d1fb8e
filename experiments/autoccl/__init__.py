"""Studies of AutoCCL (Xu et al., NSDI 2025).

In reading order: ``tasks`` (Tables 1 and 8: the collectives), ``spaces`` (Table 2, Fig. 2),
``optima`` (Fig. 3, Table 7: what printed optima say about the model), ``fitted`` (Tables 3 to 5,
Fig. 1: the model fitted to printed bandwidths), ``workflow`` (Fig. 4 to 6), ``tuners`` (Fig. 7 to 9
in the model), ``claims`` (Sec. 6 and the abstract, and where the paper contradicts itself).
``labels`` names the kinds of rows.

Every row says how its numbers came about: measured here, modelled, or needs NCCL.
"""

from __future__ import annotations

from experiments.study import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "autoccl-table-1": Experiment("experiments.autoccl.tasks"),
    "autoccl-table-2": Experiment("experiments.autoccl.spaces"),
    "autoccl-fig-3": Experiment("experiments.autoccl.optima"),
    "autoccl-fig-1": Experiment("experiments.autoccl.fitted"),
    "autoccl-table-5": Experiment("experiments.autoccl.fitted"),
    "autoccl-fig-6": Experiment("experiments.autoccl.workflow"),
    "autoccl-fig-9": Experiment("experiments.autoccl.tuners"),
    "autoccl-claims": Experiment("experiments.autoccl.claims"),
}
