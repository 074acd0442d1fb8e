"""Tuning: the configuration of each collective, chosen by measured times.

``Space`` is the set of configurations to choose from, ``search`` the way to choose; ``Table`` keeps
measurements and decisions, ``use`` runs programs by it, and ``nccl`` writes it for NCCL.
``offline`` tunes collectives before training, ``online`` tunes a training step while it trains, and
``bucket_bytes`` tunes the size of its gradient buckets.

The configurations and the search for the fastest are in ``jaxcoll.configurations``. Read the
modules here in this order: ``table`` (measurements and decisions), ``table_file`` and ``in_use``
(calls that run by it); ``trial`` (the configurations of a JAX backend, and their measurement) and
``offline_tuner``; ``training_step`` (the online tuner); ``nccl``.
"""

import importlib
from typing import TYPE_CHECKING

from jaxcoll.configurations import Config, Parameter, Task
from jaxcoll.configurations.fitted import Fitted
from jaxcoll.configurations.space import Space, Subspace
from jaxcoll.tune import nccl
from jaxcoll.tune.table import Table
from jaxcoll.tune.table_file import Machine

if TYPE_CHECKING:
    from jaxcoll.tune.backend_space import jax_space
    from jaxcoll.tune.in_use import this_machine, use
    from jaxcoll.tune.offline_tuner import BucketSizes, Outcome, bucket_bytes, offline
    from jaxcoll.tune.training_step.online_tuner import online
    from jaxcoll.tune.training_step.report import Recording, Report, replay
    from jaxcoll.tune.trial import tasks_of

# Names that need jax -> their modules.
_NEED_JAX = {
    "BucketSizes": "offline_tuner",
    "Outcome": "offline_tuner",
    "Recording": "training_step.report",
    "Report": "training_step.report",
    "bucket_bytes": "offline_tuner",
    "jax_space": "backend_space",
    "offline": "offline_tuner",
    "online": "training_step.online_tuner",
    "replay": "training_step.report",
    "tasks_of": "trial",
    "this_machine": "in_use",
    "use": "in_use",
}

__all__ = [
    "BucketSizes",
    "Config",
    "Fitted",
    "Machine",
    "Outcome",
    "Parameter",
    "Recording",
    "Report",
    "Space",
    "Subspace",
    "Table",
    "Task",
    "bucket_bytes",
    "jax_space",
    "nccl",
    "offline",
    "online",
    "replay",
    "tasks_of",
    "this_machine",
    "use",
]


def __getattr__(name: str):
    if name in _NEED_JAX:
        return getattr(importlib.import_module(f"jaxcoll.tune.{_NEED_JAX[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
