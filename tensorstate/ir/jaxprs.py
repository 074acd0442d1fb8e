"""Reads the jaxprs of every supported JAX: the only file that knows JAX's internals.

JAX's equations and registries are not a stable interface: ``lax.scan`` has changed the parameters
that describe its carry, and ``composite`` has renamed its jaxpr. A test has the parameter sets of
all supported versions, and fails on a JAX whose sets differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import jax
from jax import lax
from jax._src.interpreters import batching, mlir
from jax._src.pjit import sharding_constraint_p
from jax.extend import core
from jax.extend import source_info_util as info
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tensorstate.errors import PlanError

# Primitives that run a jaxpr once, with the names that the parameter of that jaxpr may have: JAX
# renames both. A call that is not listed here would be one operator, on whole arrays if no rule is
# inferred. Of a custom derivative the function itself is run: ``jax.grad`` has done the rest.
CALL_PRIMITIVES = {
    "jit": ("jaxpr",),
    "pjit": ("jaxpr",),
    "closed_call": ("call_jaxpr",),
    "core_call": ("call_jaxpr",),
    "call": ("call_jaxpr",),
    "eval_jaxpr": ("call_jaxpr", "jaxpr"),
    "custom_jvp_call": ("call_jaxpr",),
    "custom_vjp_call": ("call_jaxpr",),
    "custom_vjp_call_jaxpr": ("call_jaxpr",),
    "custom_vmap_call": ("call",),
    "custom_partitioning": ("call",),
    "composite": ("call_jaxpr", "jaxpr"),
    "linear_call": ("callee",),
    "remat": ("jaxpr",),
    "remat2": ("jaxpr",),
    "checkpoint": ("jaxpr",),
    "custom_linear_solve": ("jaxprs",),
}
CHECKPOINTS = frozenset({"remat", "remat2", "checkpoint"})
# ``vmap`` replaces the jaxprs of these primitives by other jaxprs.
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
# Those that move data; the others say where a device is, or of what kind a value is.
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


Axes = tuple[str, ...]

PinSpec = tuple[Axes | None, ...]
"""By dimension the mesh axes that shard it, major first; ``None`` if the compiler may choose."""


class Loop(NamedTuple):
    """A scan. Its body takes the constants, then the carry, then one row of each other operand."""

    jaxpr: Any
    constants: Sequence[Any]
    num_consts: int
    num_carry: int
    length: int
    reverse: bool


class While(NamedTuple):
    """A while loop. Condition and body take constants of their own, then the carry."""

    condition: tuple[Any, Sequence[Any]]
    body: tuple[Any, Sequence[Any]]
    num_condition_consts: int
    num_body_consts: int


class Inner(NamedTuple):
    """The program that a call runs once.

    Attributes:
        jaxpr, constants: the program and the values that it closed over.
        operands: the operands of the call that the program takes.
        is_remat: whether it reruns, in the backward pass of ``jax.checkpoint``.
        name: of the user's function; empty if it has none, or if the function is JAX's own.
    """

    jaxpr: Any
    constants: Sequence[Any]
    operands: slice
    is_remat: bool
    name: str


def unpack_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr and the values of its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def call_of(eqn: Any) -> Inner | None:
    """The program that an equation calls, if the equation does nothing else."""
    name, params = eqn.primitive.name, eqn.params
    key = next((key for key in CALL_PRIMITIVES.get(name, ()) if key in params), None)
    if key is None:
        return None
    called, operands = params[key], slice(None)
    if name == "custom_linear_solve":
        lengths = params["const_lengths"]
        called, first = called.solve, lengths.matvec + lengths.vecmat
        if lengths.transpose_solve:  # between the constants of the solver and the right-hand side
            return None
        operands = slice(first, None)
    jaxpr, constants = unpack_jaxpr(called)
    if len(jaxpr.invars) != len(eqn.invars[operands]) or len(jaxpr.outvars) != len(eqn.outvars):
        return None
    given = params.get("name", "") if name in ("jit", "pjit") else ""
    is_remat = name in CHECKPOINTS and bool(params.get("differentiated"))
    return Inner(jaxpr, constants, operands, is_remat, "" if given.startswith("_") else given)


def loop_of(eqn: Any) -> Loop:
    """A scan's body, with the numbers of its constants and of its carry.

    Raises:
        PlanError: this version of JAX describes scans by unknown parameters.
    """
    params = eqn.params
    if "num_carry" in params:
        consts, carry = params["num_consts"], params["num_carry"]
        parts = consts, carry, len(eqn.invars) - consts - carry
    elif "ft_in" in params:
        parts = tuple(len(part) for part in params["ft_in"].unpack())
    else:
        parts = ()
    if len(parts) != 3 or sum(parts) != len(eqn.invars):
        raise PlanError(
            f"the parameters {', '.join(sorted(params))} of a scan in JAX {jax.__version__} are "
            "not known to tensorstate: use a JAX from 0.10.2 to 0.12, or a newer tensorstate"
        )
    jaxpr, constants = unpack_jaxpr(params["jaxpr"])
    return Loop(jaxpr, constants, *parts[:2], int(params["length"]), bool(params["reverse"]))


def while_of(eqn: Any) -> While:
    """The condition and the body of a while loop."""
    params = eqn.params
    condition, body = (unpack_jaxpr(params[name]) for name in ("cond_jaxpr", "body_jaxpr"))
    return While(condition, body, params["cond_nconsts"], params["body_nconsts"])


def bound(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation on other operands; literals stay what they are."""
    # As a program of one equation, which JAX runs with its context and the name of its scope.
    given = {
        atom: x
        for atom, x in zip(eqn.invars, operands, strict=True)
        if not isinstance(atom, core.Literal)
    }
    names = ("",) * len(given), ("",) * len(eqn.outvars)
    debug = core.DebugInfo("an equation", eqn.primitive.name, *names)
    program = core.Jaxpr((), [*given], eqn.outvars, [eqn], eqn.effects, debug)
    closed = core.ClosedJaxpr(program, ())  # pyright: ignore[reportPrivateImportUsage]
    return core.jaxpr_as_fun(closed)(*given.values())


def with_bodies(eqn: Any, replace: Callable[[Any], Callable[..., Sequence[Any]]]) -> Any:
    """A loop or a ``cond`` with the functions that replace its jaxprs, traced."""

    def replaced(closed: Any) -> Any:
        shapes = [
            jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False))
            for x in closed.in_avals
        ]
        return jax.make_jaxpr(replace(closed))(*shapes)

    params = dict(eqn.params)
    for name in {"jaxpr", "body_jaxpr", "cond_jaxpr"} & params.keys():
        params[name] = replaced(params[name])
    if "branches" in params:
        params["branches"] = tuple(map(replaced, params["branches"]))
    return eqn.replace(params=params)


def has_own_gradient(jaxpr: Any) -> bool:
    """Whether a jaxpr contains a backward pass of its own, as a loop over whole steps does."""
    for eqn in jaxpr.eqns:
        if "transpose(" in str(eqn.source_info.name_stack):
            return True
        if any(map(has_own_gradient, core.jaxprs_in_params(eqn.params))):
            return True
    return False


def branches_of(eqn: Any) -> list[tuple[Any, Sequence[Any]]]:
    """The jaxprs between which a ``cond`` or ``switch`` chooses, with their constants.

    Empty if only one branch may run: a ``cond`` on the platform, where the other branches may not
    exist, or a ``cond`` with a ``while_loop`` in a branch, which might not end when not chosen.
    """
    branches = [unpack_jaxpr(branch) for branch in eqn.params["branches"]]
    loops = (first_inside(inner, {"while"}) for jaxpr, _ in branches for inner in jaxpr.eqns)
    if eqn.params.get("branches_platforms") or any(loop is not None for loop in loops):
        return []
    return branches


def refusal(eqn: Any) -> str | None:
    """The reason why a step with this equation is refused, with a remedy; ``None`` if it is not."""
    name = eqn.primitive.name
    if eqn.effects:
        kinds = ", ".join(sorted({str(effect).partition("<")[0] for effect in eqn.effects}))
        return (
            f"has the side effect {kinds} in {name!r}, expected a pure function: remove prints and "
            "callbacks, and return their values instead"
        )
    if name in REFERENCES:
        return f"changes a reference in {name!r}, expected a pure function: return new values"
    if (reason := _refused_pin(eqn)) is not None:
        return reason
    if (unshared := first_inside(eqn, UNSHARED)) is None:
        return None
    primitive = unshared.primitive.name
    if primitive == "rng_uniform":
        return f"draws numbers without a key in {primitive!r}: use jax.random"
    kind = "the map over devices" if primitive in MAPS else "the collective"
    inside = ""
    if primitive in MAPS and (found := first_inside(eqn, UNSHARED - MAPS)) is not None:
        line = info.summarize(found.source_info)
        inside = f" with the collective {found.primitive.name!r} ({line})"
    return (
        f"has {kind} {primitive!r}{inside}, which plans add themselves: write the step as for one "
        "device, on the whole batch"
    )


# Parameters by which an equation asks for the sharding of its result.
_ASKING = ("out_sharding", "sharding")


def pin_of(eqn: Any, transposed: bool) -> PinSpec | None:
    """The sharding that an equation asks for, of the one array that it takes or returns.

    ``with_sharding_constraint`` and ``reshard`` change nothing else. Under Explicit axes the
    transpose of a ``reshard`` restores the sharding that its operand had before, which nobody asked
    for; but its own operand, a gradient, has the sharding that was asked for the value.

    Args:
        transposed: whether the equation is of the backward pass.
    """
    name, params = eqn.primitive.name, eqn.params
    if name not in ("sharding_constraint", "reshard") or not eqn.outvars[0].aval.ndim:
        return None
    if name == "sharding_constraint":
        free = params["unconstrained_dims"]
        spec = _spec(params["sharding"], eqn.outvars[0].aval.ndim)
        return spec and tuple(None if d in free else axes for d, axes in enumerate(spec))
    # ``reshard(x, P("data"))`` of an x that is sharded along "model": its transpose is a reshard of
    # the gradient from "data" back to "model". The pin is "data", as of the value.
    asking = eqn.invars[0].aval.sharding if transposed else params["dst_sharding"]
    if AxisType.Explicit not in asking.mesh.axis_types:  # ``auto_axes``, in which JAX indexes
        return None
    rest = None if AxisType.Auto in asking.mesh.axis_types else ()  # the compiler's to choose
    return tuple(axes or rest for axes in _spec(asking, eqn.outvars[0].aval.ndim) or ())


def asked_of(eqn: Any) -> PinSpec | None:
    """The sharding that a computation asks of its result: ``out_sharding=`` of Explicit axes."""
    asked = [eqn.params[name] for name in _ASKING if eqn.params.get(name) is not None]
    if not asked or not eqn.outvars[0].aval.ndim or eqn.primitive.name in IDENTITY_PRIMITIVES:
        return None
    return _spec(asked[0], eqn.outvars[0].aval.ndim)


def typed(variable: Any) -> PinSpec:
    """The sharding in the type of an array, which Explicit axes give it."""
    return _spec(variable.aval.sharding, variable.aval.ndim) or ((),) * variable.aval.ndim


def unasked(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters without shardings, which mean nothing where a device runs its own shard."""
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


def first_inside(eqn: Any, names: Set[str]) -> Any:
    """The equation itself, or the first one it contains, of a primitive in ``names``."""
    if eqn.primitive.name in names:
        return eqn
    nested = (inner for jaxpr in core.jaxprs_in_params(eqn.params) for inner in jaxpr.eqns)
    found = (first_inside(inner, names) for inner in nested)
    return next((inner for inner in found if inner is not None), None)


# ---------------------------------------------------------------------- registries


def broadcasts(primitive: core.Primitive) -> bool:
    """Whether JAX batches a primitive by broadcasting its operands, as it does elementwise ones.

    ``lax.naryop`` defines primitives in this way. The caller must check the shapes of the results,
    since ``random_split``, for example, has this batching rule without being elementwise.
    """
    rule = batching.fancy_primitive_batchers.get(primitive)
    batchers = (batching.broadcast_batcher, batching.vectorized_batcher)
    return isinstance(rule, functools.partial) and rule.func in batchers


def decomposition(primitive: core.Primitive) -> Callable[..., Any] | None:
    """The Python function by which JAX computes a primitive on every platform, if there is one.

    It takes the operands and the parameters, and returns a sequence of results.
    """
    if primitive.name == "call_hi_primitive":
        return primitive.to_lojax  # pyright: ignore[reportAttributeAccessIssue]
    rule: Any = getattr(mlir._lowerings.get(primitive), "rule", None)
    # On some platform another program runs it, a cuSOLVER call say: its decomposition is not what
    # the user's devices would do.
    if any(primitive in table for table in mlir._platform_specific_lowerings.values()):
        return None
    if rule is None or not getattr(rule, "__qualname__", "").startswith("lower_fun."):
        return None
    # No registry has the function: ``lower_fun(f, multiple_results)`` returns a closure over both.
    cells = dict(zip(rule.__code__.co_freevars, rule.__closure__ or (), strict=True))
    function, several = cells["fun"].cell_contents, cells["multiple_results"].cell_contents
    return function if several else lambda *args, **params: (function(*args, **params),)


def new_primitive(name: str, run: Callable, abstract: Callable, batch: Callable) -> core.Primitive:
    """A primitive of several results.

    Args:
        run: the operation on arrays, which is also what it is lowered to.
        abstract, batch: the types of its results; results and batched dimensions under ``vmap``.
    """
    primitive = core.Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(run)
    primitive.def_abstract_eval(abstract)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    batching.primitive_batchers[primitive] = batch
    return primitive


def registered() -> list[core.Primitive]:
    """All primitives for which the installed JAX has a batching rule or a lowering, by name."""
    primitives = {*batching.fancy_primitive_batchers, *mlir._lowerings}
    for platform in mlir._platform_specific_lowerings.values():
        primitives |= {*platform}
    return sorted(primitives, key=lambda primitive: primitive.name)


# ---------------------------------------------------------------------- equations

# Of flat programs only: these are never bound. "fill" makes a repeated scalar an array of its own,
# where a loop changes it.
_BOUNDARY = {
    name: core.Primitive(name)
    for name in (
        *("carry_in", "carry_out", "scan_row", "scan_stack", "sum_out", "while_condition"),
        "fill",
    )
}

Equation = tuple[core.Primitive, dict[str, Any]]


def transposing(permutation: Sequence[int]) -> Equation:
    """A transpose."""
    return lax.transpose_p, {"permutation": tuple(permutation)}


def reshaping(shape: Sequence[int]) -> Equation:
    """A reshape."""
    return lax.reshape_p, {"new_sizes": tuple(shape), "dimensions": None, "sharding": None}


def slicing(start: Sequence[int], limit: Sequence[int]) -> Equation:
    """A slice without strides."""
    indices = {"start_indices": tuple(start), "limit_indices": tuple(limit)}
    return lax.slice_p, {**indices, "strides": None}


def squeezing(dimension: int) -> Equation:
    """A squeeze of one dimension."""
    return lax.squeeze_p, {"dimensions": (dimension,)}


def broadcasting(shape: Sequence[int], dimensions: Sequence[int]) -> Equation:
    """A broadcast; ``dimensions`` gives the result's dimension for each operand dimension."""
    return lax.broadcast_in_dim_p, {
        "shape": tuple(shape),
        "broadcast_dimensions": tuple(dimensions),
        "sharding": None,
    }


def concatenating(dimension: int) -> Equation:
    """A concatenation."""
    return lax.concatenate_p, {"dimension": dimension}


def pinning(spec: PinSpec) -> Equation:
    """The identity on an array whose sharding is asked for."""
    return sharding_constraint_p, {"spec": spec}


def at_boundary(name: str) -> Equation:
    """An equation at the boundary of a loop (see ``tensorstate.ir.graph``)."""
    return _BOUNDARY[name], {}


def selecting() -> Equation:
    """A selection among arrays, elementwise, by an integer or Boolean array."""
    return lax.select_n_p, {}
