"""The treatment of JAX's primitives in a graph: some are refused, identities, or pins.

Primitives are known by name, and JAX adds and renames some with every version:
``tests/tensorstate/rules/test_primitives.py`` prints the treatment of every primitive of the
installed JAX. Calls and loops are read in ``jaxcoll.jax_internals``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxcoll import jax_internals
from tensorstate.errors import PlanError

# ``vmap`` replaces the jaxprs of these primitives.
CONTROL_FLOW = frozenset({"cond", "scan", "while"})
# Primitives that change no value. Those that also ask for a sharding are pins: see ``pin_of``.
_IDENTITIES = """
copy copy_p name stop_gradient pvary sharding_constraint layout_constraint mesh_cast reshard
relayout pin unpin device_put with_memory_space_constraint
"""
IDENTITY_PRIMITIVES = frozenset(_IDENTITIES.split())
# Collectives have no meaning on one device, or would give replicated operands different results.
_COLLECTIVES = """
all_gather all_gather_invariant all_gather_reduced all_to_all axis_index pbroadcast pmax pmin
ppermute precv preduced psend psum psum_invariant ragged_all_to_all reduce_scatter
reduced_vary_cast reduced_vary_cast_p vary_unreduced_cast vary_unreduced_cast_p unreduced_pmax
unreduced_pmin unreduced_psum unreduced_reduce_scatter
"""
COLLECTIVES = frozenset(_COLLECTIVES.split())
# Collectives that move data; the others state where a device is, or the kind of a value.
COMMUNICATING = (
    COLLECTIVES - {"axis_index", "preduced"} - {name for name in COLLECTIVES if "_cast" in name}
)
MAPS = frozenset({"shard_map", "pmap", "xla_pmap"})
# Public names of collectives, and the two halves of asynchronous ones.
UNSHARED = (
    MAPS
    | {"rng_uniform"}
    | {name + half for name in COLLECTIVES for half in ("", "_start", "_done")}
)
REFERENCES = frozenset({"addupdate", "freeze", "get", "new_ref", "swap"})
# Uninitialized arrays: residuals that only the other branches of a ``cond`` compute.
UNINITIALIZED = frozenset({"empty", "empty2"})

# Functions outside of the program: whether they act along a dimension cannot be known.
FOREIGN = frozenset({"ffi_call", "io_callback", "pure_callback", "custom_call", "tpu_custom_call"})

# Platforms of kernels, which Pallas compiles for; steps run on the platforms of devices.
KERNEL_LANGUAGES = frozenset({"mosaic"})

Axes = tuple[str, ...]

PinSpec = tuple[Axes | None, ...]
"""The mesh axes that shard each dimension, major first; ``None`` if the compiler may choose."""


def loop_of(eqn: Any) -> jax_internals.Loop:
    """A scan's body, with the numbers of its constants and of its carry.

    Raises:
        PlanError: this version of JAX describes scans by unknown parameters.
    """
    loop = jax_internals.loop_of(eqn)
    if loop is None:
        raise PlanError(
            f"the parameters {', '.join(sorted(eqn.params))} of a scan in JAX {jax.__version__} "
            "are not known to tensorstate: use a JAX from 0.10.2 to 0.12, or a newer tensorstate"
        )
    return loop


def has_own_gradient(jaxpr: Any) -> bool:
    """Whether a jaxpr contains a backward pass of its own, as a loop over whole steps does."""
    for eqn in jaxpr.eqns:
        if "transpose(" in str(jax_internals.name_stack_of(eqn)):
            return True
        if any(map(has_own_gradient, jax_internals.inner_jaxprs(eqn))):
            return True
    return False


def trains(loop: jax_internals.Loop) -> bool:
    """Whether the gradients in a scan's body are taken at numbers that the scan carries.

    So it is where parameters change from step to step, and not where gradients are accumulated.
    """
    carried = loop.jaxpr.invars[loop.num_consts : loop.num_consts + loop.num_carry]
    reached = {x for x in carried if jnp.issubdtype(x.aval.dtype, jnp.inexact)}
    for eqn in loop.jaxpr.eqns:
        variables = [x for x in eqn.invars if not isinstance(x, jax_internals.Literal)]
        if reached.isdisjoint(variables):
            continue
        stack = str(jax_internals.name_stack_of(eqn))
        is_forward = "jvp(" in stack and "transpose(" not in stack
        if is_forward or any(map(has_own_gradient, jax_internals.inner_jaxprs(eqn))):
            return True
        reached.update(eqn.outvars)
    return False


def num_equations(eqn: Any) -> int:
    """The number of equations of which an equation consists once its calls are inlined.

    Scans count as if they were unrolled.
    """
    inside = sum(
        num_equations(inner) for jaxpr in jax_internals.inner_jaxprs(eqn) for inner in jaxpr.eqns
    )
    repeats = loop_of(eqn).length if eqn.primitive.name == "scan" else 1
    return repeats * inside or 1


def branches_of(eqn: Any) -> list[tuple[Any, Sequence[Any]]]:
    """The jaxprs between which a ``cond`` or ``switch`` chooses, with their constants.

    A ``cond`` between devices and the inside of kernels, as of ``jnp.diagonal``, has one branch: a
    step runs on devices. Empty if only one branch may run: any other ``cond`` on the platform,
    where the other branches may not exist, or a ``cond`` with a ``while_loop`` in a branch, which
    might not end when not chosen.
    """
    branches = [jax_internals.parts_of(branch) for branch in eqn.params["branches"]]
    platforms = eqn.params.get("branches_platforms")
    if platforms and all(each is None or KERNEL_LANGUAGES.issuperset(each) for each in platforms):
        return [branches[platforms.index(None)]]
    inside = (inner for jaxpr, _ in branches for inner in jaxpr.eqns)
    loops = (jax_internals.first_inside(inner, {"while"}) for inner in inside)
    if platforms or any(loop is not None for loop in loops):
        return []
    return branches


def refusal(eqn: Any) -> str | None:
    """The reason why a step with this equation is refused, with a remedy; ``None`` if it is not."""
    name = eqn.primitive.name
    if effects := jax_internals.effects_of(eqn):
        return (
            f"has the side effect {', '.join(effects)} in {name!r}, expected a pure function: "
            "remove prints and callbacks, and return their values instead"
        )
    if name in REFERENCES:
        return f"changes a reference in {name!r}, expected a pure function: return new values"
    if (reason := _refused_pin(eqn)) is not None:
        return reason
    if (unshared := jax_internals.first_inside(eqn, UNSHARED)) is None:
        return None
    primitive = unshared.primitive.name
    if primitive == "rng_uniform":
        return f"draws numbers without a key in {primitive!r}: use jax.random"
    kind = "the map over devices" if primitive in MAPS else "the collective"
    inside = ""
    found = jax_internals.first_inside(eqn, UNSHARED - MAPS) if primitive in MAPS else None
    if found is not None:
        line = jax_internals.line_of(jax_internals.source_of(found))
        inside = f" with the collective {found.primitive.name!r} ({line})"
    return (
        f"has {kind} {primitive!r}{inside}, which plans add themselves: write the step as for one "
        "device, on the whole batch"
    )


# Parameters by which an equation asks for the sharding of its result.
_ASKING = ("out_sharding", "sharding")


def pin_of(eqn: Any, transposed: bool) -> PinSpec | None:
    """The sharding that an equation asks for, for the one array that it takes or returns.

    ``with_sharding_constraint`` and ``reshard`` change nothing else. Under Explicit axes the
    transpose of a ``reshard`` restores the sharding that its operand had before, which was not
    asked for. But its own operand, a gradient, has the sharding that was asked for the value.

    Args:
        transposed: whether the equation belongs to the backward pass.
    """
    name, params = eqn.primitive.name, eqn.params
    if name not in ("sharding_constraint", "reshard") or not eqn.outvars[0].aval.ndim:
        return None
    if name == "sharding_constraint":
        free = params["unconstrained_dims"]
        spec = _spec(params["sharding"], eqn.outvars[0].aval.ndim)
        return spec and tuple(None if d in free else axes for d, axes in enumerate(spec))
    # Example: ``reshard(x, P("data"))`` for an x that is sharded along "model". Its transpose
    # reshards the gradient from "data" back to "model"; the pin is "data", as for the value.
    asking = eqn.invars[0].aval.sharding if transposed else params["dst_sharding"]
    if AxisType.Explicit not in asking.mesh.axis_types:  # ``auto_axes``, in which JAX indexes
        return None
    rest = None if AxisType.Auto in asking.mesh.axis_types else ()  # free for the compiler
    return tuple(axes or rest for axes in _spec(asking, eqn.outvars[0].aval.ndim) or ())


def asked_of(eqn: Any) -> PinSpec | None:
    """The sharding that a computation asks for its result: ``out_sharding=`` of Explicit axes."""
    asked = [eqn.params[name] for name in _ASKING if eqn.params.get(name) is not None]
    if not asked or not eqn.outvars[0].aval.ndim or eqn.primitive.name in IDENTITY_PRIMITIVES:
        return None
    return _spec(asked[0], eqn.outvars[0].aval.ndim)


def typed(variable: Any) -> PinSpec:
    """The sharding in the type of an array, which Explicit axes give it."""
    return _spec(variable.aval.sharding, variable.aval.ndim) or ((),) * variable.aval.ndim


def unasked(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters without shardings, which have no meaning when a device runs its own shard."""
    if any(params.get(name) is not None for name in _ASKING):
        return {**params, **{name: None for name in _ASKING if name in params}}
    return params


def _spec(sharding: Any, ndim: int) -> PinSpec | None:
    """The axes of every dimension; ``None`` for a sharding without a mesh."""
    spec = sharding if isinstance(sharding, PartitionSpec) else getattr(sharding, "spec", None)
    if spec is None:
        return None
    dims: list[Axes | None] = [
        None if axes is PartitionSpec.UNCONSTRAINED else axis_names(axes) for axes in spec
    ]
    return (*dims, *(() for _ in range(ndim - len(dims))))


def axis_names(entry: Any) -> Axes:
    """The mesh axes of one dimension of a ``PartitionSpec``: ``None``, a name, or several."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _refused_pin(eqn: Any) -> str | None:
    """The reason why a sharding that an equation asks for cannot be a pin."""
    params = eqn.params
    asked = [params[name] for name in (*_ASKING, "dst_sharding") if params.get(name) is not None]
    for sharding in asked:
        if not isinstance(sharding, (NamedSharding, PartitionSpec)):
            return (
                f"constrains a value to {type(sharding).__name__}, which names no mesh axes: use a "
                "NamedSharding or a PartitionSpec"
            )
        spec = sharding if isinstance(sharding, PartitionSpec) else sharding.spec
        if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
            return (
                f"asks for the sharding {spec}, with sums that are not complete, which no pin "
                "can say: the search finds where to leave sums open, so ask for the rest only"
            )
    return None


# ---------------------------------------------------------------------- equations

# Only for flat programs: these are never bound. "fill" turns a repeated scalar into an array, for a
# loop that changes it.
_BOUNDARY = {
    name: jax_internals.Primitive(name)
    for name in (
        *("carry_in", "carry_out", "scan_row", "scan_stack", "sum_out", "while_condition"),
        "fill",
    )
}


def pinning(spec: PinSpec) -> jax_internals.Equation:
    """The identity on an array whose sharding is requested."""
    return jax_internals.SHARDING_CONSTRAINT, {"spec": spec}


def at_boundary(name: str) -> jax_internals.Equation:
    """An equation at the boundary of a loop (see ``tensorstate.ir.graph``)."""
    return _BOUNDARY[name], {}
