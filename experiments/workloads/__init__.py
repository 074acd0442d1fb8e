"""Training time: the compute and exchanges of a network's layers, against simulated collectives.

A *model* is a table of layers by their shapes (``configs/workload/``), an *accelerator* says how
long a matrix product takes (``configs/accelerator/``); together they are a *workload*: per layer
the time of each pass and the bytes of each exchange. ``iteration`` runs one training iteration of
it, with or without overlap, on collectives whose times ``jaxcoll.simulation`` gives.
"""

from experiments.workloads.exchanges import Exchange, Layer, Workload, workload
from experiments.workloads.models import (
    Accelerator,
    Flops,
    Model,
    Simulated,
    Systolic,
    fastest,
    ideal,
    in_turn,
    load_accelerator,
    load_model,
)
from experiments.workloads.timeline import Iteration, Overlap, iteration

__all__ = [
    "Accelerator",
    "Exchange",
    "Flops",
    "Iteration",
    "Layer",
    "Model",
    "Overlap",
    "Simulated",
    "Systolic",
    "Workload",
    "fastest",
    "ideal",
    "in_turn",
    "iteration",
    "load_accelerator",
    "load_model",
    "workload",
]
