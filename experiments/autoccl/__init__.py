"""Studies of AutoCCL (Xu et al., NSDI 2025).

In reading order: ``tasks`` (Tables 1 and 8: the collectives), ``spaces`` (Table 2, Fig. 2),
``optima`` (Fig. 3, Table 7: what printed optima say about the model), ``fitted`` (Tables 3 to 6,
Fig. 1: the model fitted to printed bandwidths), ``workflow`` (Fig. 4 to 6), ``tuners`` (Fig. 7 to 9
in the model), ``claims`` (Sec. 6 and the abstract, and where the paper contradicts itself). On CPU
devices: ``trials`` (collectives timed, also in several processes), ``configurations``
(Tables 3 to 5, Fig. 1), ``microbenchmarks`` (Table 6, Fig. 7 to 10), ``training`` (Table 8, Fig. 11
and 12). ``labels`` names the kinds of rows, ``bandwidth`` is the model of equations 1 to 5,
``searches`` are those that the tuners are compared by, with made-up machines.

Every row says how its numbers came about: measured here, modelled, or needs NCCL.
"""

from __future__ import annotations

from experiments.study import Experiment

# Columns that a run on devices measures, and those that it chooses by its times.
_TIMED = ("ms", "*[, ]ms", "GB/s", "over *", "configuration", "steps *")


def _measured(module: str) -> Experiment:
    return Experiment(f"experiments.autoccl.{module}", measured=_TIMED)


EXPERIMENTS: dict[str, Experiment] = {
    "autoccl-table-1": Experiment("experiments.autoccl.tasks"),
    "autoccl-table-2": Experiment("experiments.autoccl.spaces"),
    "autoccl-fig-3": Experiment("experiments.autoccl.optima"),
    "autoccl-fig-1": Experiment("experiments.autoccl.fitted"),
    "autoccl-table-5": Experiment("experiments.autoccl.fitted"),
    "autoccl-table-3": _measured("configurations"),
    "autoccl-table-6": _measured("microbenchmarks"),
    "autoccl-fig-6": Experiment("experiments.autoccl.workflow"),
    "autoccl-fig-7": _measured("microbenchmarks"),
    "autoccl-fig-9": Experiment("experiments.autoccl.tuners"),
    "autoccl-fig-9-measured": _measured("microbenchmarks"),
    "autoccl-fig-10": _measured("microbenchmarks"),
    "autoccl-fig-11": _measured("training"),
    "autoccl-claims": Experiment("experiments.autoccl.claims"),
}
