"""Tuning: the configuration of each collective, chosen by measured times.

``Space`` is what to choose from, ``search`` how to choose.
"""

from jaxcoll.tune.config import Config, Parameter
from jaxcoll.tune.space import Space, Subspace

__all__ = ["Config", "Parameter", "Space", "Subspace"]
