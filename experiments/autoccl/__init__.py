"""Studies of AutoCCL (Xu et al., NSDI 2025).

In reading order: ``tasks`` (Tables 1, 2 and 8, Fig. 2: collectives and configurations), ``fitted``
(Tables 3 to 7, Fig. 1 and 3: what printed optima say about the model, and the model fitted to
printed bandwidths), ``tuners`` (Fig. 4 to 9 in the model). On CPU devices: ``trials`` (collectives
timed, also in several processes), ``microbenchmarks`` (Tables 3 to 6, Fig. 1 and 7 to 10),
``training`` (Table 8, Fig. 11 and 12; beside them what only GPUs with NCCL show, Sec. 6 and the
abstract, and where the paper contradicts itself). ``bandwidth`` is the model of equations 1 to 5,
``searches`` are those that the tuners are compared with, on the invented machines of
``landscapes``.

Every row says how its numbers came about: measured here, modelled, or needs NCCL.
"""

from __future__ import annotations

from typing import Literal

from experiments.study import Experiment

# Columns that a run on devices measures, and those that it chooses by its times.
_TIMED = ("ms", "*[, ]ms", "GB/s", "over *", "configuration", "steps *")

EXPERIMENTS: dict[str, Experiment] = {
    "autoccl-table-1": Experiment("autoccl.tasks:tasks"),
    "autoccl-table-2": Experiment("autoccl.tasks:spaces"),
    "autoccl-fig-3": Experiment("autoccl.fitted:optima"),
    "autoccl-fig-1": Experiment("autoccl.fitted"),
    "autoccl-table-5": Experiment("autoccl.fitted"),
    "autoccl-table-3": Experiment("autoccl.microbenchmarks:configurations", measured=_TIMED),
    "autoccl-table-6": Experiment("autoccl.microbenchmarks", measured=_TIMED),
    "autoccl-fig-6": Experiment("autoccl.tuners:workflow"),
    "autoccl-fig-7": Experiment("autoccl.microbenchmarks", measured=_TIMED),
    "autoccl-fig-9": Experiment("autoccl.tuners:tuners"),
    "autoccl-fig-9-measured": Experiment("autoccl.microbenchmarks", measured=_TIMED),
    "autoccl-fig-10": Experiment("autoccl.microbenchmarks", measured=_TIMED),
    "autoccl-fig-11": Experiment("autoccl.training", measured=_TIMED),
    "autoccl-claims": Experiment("autoccl.training:claims"),
}


Label = Literal["measured here", "modelled", "needs NCCL"]

# Timed or counted on this machine.
MEASURED: Label = "measured here"
# Follows from the paper's equations or settings, or from a model fitted to its printed numbers.
MODELLED: Label = "modelled"
# Only GPUs with NCCL can show it: the row holds the paper's number alone.
NEEDS_NCCL: Label = "needs NCCL"
LABELS = (MEASURED, MODELLED, NEEDS_NCCL)
