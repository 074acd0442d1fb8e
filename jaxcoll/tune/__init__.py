"""Tuning: the configuration of each collective, chosen by measured times.

``Space`` is what to choose from, ``search`` how to choose; ``Table`` keeps what was measured and
decided, ``use`` runs programs by it, and ``nccl`` writes it for NCCL. ``offline`` tunes collectives
before training, ``online`` a training step while it trains.

To be read in this order: ``config`` and ``space``; ``model``, ``fit`` and ``search``; ``table``;
``trial`` and ``offline_tuner``; ``processes``, ``leader``, ``programs`` and ``online_tuner``.
"""

import importlib
from typing import TYPE_CHECKING

from jaxcoll.task import Task
from jaxcoll.tune import nccl
from jaxcoll.tune.config import Config, Parameter
from jaxcoll.tune.machine import Machine
from jaxcoll.tune.space import Space, Subspace
from jaxcoll.tune.table import Table

if TYPE_CHECKING:
    from jaxcoll.tune.backend_space import jax_space
    from jaxcoll.tune.in_use import this_machine, use
    from jaxcoll.tune.offline_tuner import Outcome, offline
    from jaxcoll.tune.online_tuner import online
    from jaxcoll.tune.report import Recording, Report
    from jaxcoll.tune.task import tasks_of

# Names that need jax, by their modules.
_NEED_JAX = {
    "Outcome": "offline_tuner",
    "Recording": "report",
    "Report": "report",
    "jax_space": "backend_space",
    "offline": "offline_tuner",
    "online": "online_tuner",
    "tasks_of": "task",
    "this_machine": "in_use",
    "use": "in_use",
}

__all__ = [
    "Config",
    "Machine",
    "Outcome",
    "Parameter",
    "Recording",
    "Report",
    "Space",
    "Subspace",
    "Table",
    "Task",
    "jax_space",
    "nccl",
    "offline",
    "online",
    "tasks_of",
    "this_machine",
    "use",
]


def __getattr__(name: str):
    if name in _NEED_JAX:
        return getattr(importlib.import_module(f"jaxcoll.tune.{_NEED_JAX[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
