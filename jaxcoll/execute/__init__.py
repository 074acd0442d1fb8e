"""Execution: schedules run on the devices of a mesh, behind the functions of ``jax.lax``.

Read in this order: ``functions``, ``rooted`` and ``ragged`` (the public functions), ``calls`` (from
arguments to a primitive), ``choice/`` (which schedule runs, or ``jax.lax``), ``primitives``
(typing, transpose, batching), ``layout`` (axes, operands as rows), ``lowerings/`` (schedules as
JAX operations) and ``buckets`` (used by training). ``encoded`` and ``wires`` send fewer bytes
by rounding values on the way; ``invariant_sums`` and ``invariant`` add independently of the
number of ranks. JAX's internals are used only through ``jaxcoll.jax_internals``.
"""

from jax.lax import axis_index, axis_size, ppermute

from jaxcoll.execute import wires
from jaxcoll.execute.choice.explained import Explanation, explain_choice
from jaxcoll.execute.choice.options import compiler_options
from jaxcoll.execute.choice.stated import use_topology
from jaxcoll.execute.functions import (
    all_gather,
    all_to_all,
    pmax,
    pmean,
    pmin,
    psum,
    psum_scatter,
)
from jaxcoll.execute.invariant_sums import invariant_sum
from jaxcoll.execute.links.probe import Probe
from jaxcoll.execute.ragged import ragged_all_to_all
from jaxcoll.execute.rooted import broadcast, gather, pbroadcast, reduce, scatter

__all__ = [
    "Explanation",
    "Probe",
    "all_gather",
    "all_to_all",
    "axis_index",
    "axis_size",
    "broadcast",
    "compiler_options",
    "explain_choice",
    "gather",
    "invariant_sum",
    "pbroadcast",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "psum",
    "psum_scatter",
    "ragged_all_to_all",
    "reduce",
    "scatter",
    "use_topology",
    "wires",
]
