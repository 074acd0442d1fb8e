"""Execution: schedules run on the devices of a mesh, behind the functions of ``jax.lax``."""

from jaxcoll.execute.functions import (
    all_gather,
    all_to_all,
    broadcast,
    gather,
    pbroadcast,
    pmean,
    psum,
    psum_scatter,
    reduce,
    scatter,
)
from jaxcoll.execute.options import compiler_options

__all__ = [
    "all_gather",
    "all_to_all",
    "broadcast",
    "compiler_options",
    "gather",
    "pbroadcast",
    "pmean",
    "psum",
    "psum_scatter",
    "reduce",
    "scatter",
]
