"""Execution: schedules run on the devices of a mesh, behind the functions of ``jax.lax``."""

from jax.lax import axis_index, axis_size, ppermute

from jaxcoll.execute.functions import (
    all_gather,
    all_to_all,
    broadcast,
    gather,
    pbroadcast,
    pmax,
    pmean,
    pmin,
    psum,
    psum_scatter,
    reduce,
    scatter,
)
from jaxcoll.execute.xla_options import compiler_options

__all__ = [
    "all_gather",
    "all_to_all",
    "axis_index",
    "axis_size",
    "broadcast",
    "compiler_options",
    "gather",
    "pbroadcast",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "psum",
    "psum_scatter",
    "reduce",
    "scatter",
]
