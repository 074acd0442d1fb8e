"""The one door to JAX's internals, of ``jaxcoll``, ``tensorstate`` and ``experiments``.

An internal is what JAX does not document, or documents as subject to change:

- the modules ``jax._src``, ``jaxlib``, ``jax.lib``, ``jax.core``, ``jax.extend`` and
  ``jax.interpreters``, and any private name of JAX;
- primitives as objects (``jax.lax.transpose_p``) and the registries of their rules;
- attributes of types, equations and programs that no page of JAX's shows (``aval.mat``,
  ``eqn.source_info``, ``eqn.effects``, ``closed.in_avals``): ``ATTRIBUTES`` of the test has them;
- what equations of calls and loops hold, which changes from version to version, and
  faults of single versions.

Not internals are

- what JAX's pages on jaxprs and on interpreters of them show: ``constvars``, ``invars``,
  ``outvars`` and ``eqns``; ``primitive``, its ``name``, ``multiple_results`` and ``bind``;
  ``params``, ``aval`` and ``val``. One test holds them;
- names and parameters of the other primitives. A sharding rule is about one primitive, and reads
  its parameters; ``tests/tensorstate/rules/parameters.py`` has the sets of every supported JAX;
- ``jax.experimental``, which has pages; the text of compiled programs; coordinates of devices,
  which ``jaxcoll.devices`` reads of any object that has them, without JAX.

Proved on the JAX versions in ``PROVED``. ``tests/core/test_jax_internals.py`` has a test of each
name here, which fails on a JAX that has changed and names its version, and one that finds
internals in other files.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import jax
import jax.profiler
import numpy as np
from jax import lax
from jax._src import compiler, config, core, distributed
from jax._src import mesh as mesh_lib
from jax._src.interpreters import batching, mlir, pxla
from jax._src.lib import _profiler  # type: ignore[attr-defined]
from jax._src.lib.mlir import ir  # pyright: ignore[reportPrivateImportUsage]
from jax._src.pjit import sharding_constraint_p
from jax._src.shard_map import ShardMapTrace
from jax.core import Tracer as Tracer
from jax.extend import core as extend
from jax.extend import source_info_util
from jax.extend.core import Literal as Literal
from jax.extend.core import Primitive as Primitive
from jax.extend.random import threefry2x32_p
from jax.interpreters import ad

PROVED = ("0.10.2", "0.12.0.1")

# Whether all_gather(to="invarying") is differentiated as such even where check_vma=False has all
# types the same: JAX 0.10 does, later ones gather as if to="varying".
INVARYING_UNCHECKED = jax.__version_info__ < (0, 11)


# Whether jax.reshard between Explicit axes inside a partly manual shard_map makes XLA abort.
RESHARD_ABORTS = jax.__version_info__ < (0, 11)

# Whether XLA for CPU removes barriers before it fuses operations, and so fuses across them.
FUSES_ACROSS_BARRIERS = jax.__version_info__ < (0, 11)

# Raised by comparisons that depend on a symbolic dimension of jax.export.
InconclusiveSize = core.InconclusiveDimensionOperation


# ---------------------------------------------------------------------- contexts

# What programs are traced under, beside their arguments: parts of the key of every cache of jit.
# JAX adds a part when a module makes one. If that happens while a program is being traced, because
# ``jc.psum`` is first used there, the next call finds another key than the program is kept under,
# and traces and compiles it again. So they stand here, and ``import jaxcoll`` loads this module if
# JAX is loaded already. ``jax.extend`` makes two parts, and Pallas further ones: it is loaded here
# where there may be a TPU to use it.
choices_context = jax.make_user_context(default_value=None)
network_context = jax.make_user_context(default_value=None)
if importlib.util.find_spec("libtpu") is not None:
    import jax.experimental.pallas.tpu


# ---------------------------------------------------------------------- types


def varying(x) -> frozenset[str]:
    """The manual mesh axes over which a value may differ from device to device."""
    return frozenset(jax.typeof(x).mat.varying)


def varying_of(aval) -> frozenset[str]:
    """The same of a type, as of a variable of a jaxpr."""
    return frozenset(aval.mat.varying) if hasattr(aval, "mat") else frozenset()


def shape_like(shape: tuple[int, ...], x, same: Collection[str] = ()) -> jax.ShapeDtypeStruct:
    """The type of an array of some shape that is of the dtype of ``x`` and varies as it does.

    Args:
        same: axes over which it does not vary.
    """
    aval = jax.typeof(x)
    types = aval.mat.update(varying=aval.mat.varying - frozenset(same))
    weak = getattr(aval, "weak_type", False)
    return jax.ShapeDtypeStruct(shape, aval.dtype, manual_axis_type=types, weak_type=weak)


def unreduced(x) -> frozenset[str]:
    """The manual mesh axes over which a value stands for a sum that is yet to be taken."""
    return frozenset(jax.typeof(x).mat.unreduced)


def explicit_sharding(x):
    """How mesh axes in Explicit mode shard a value: its spec, and the set of those axes."""
    spec = jax.typeof(x).sharding.spec
    named = (part if isinstance(part, tuple) else (part,) for part in spec)
    return spec, {name for part in named for name in part if name is not None}


def ways(part) -> int:
    """Into how many parts an entry of a spec cuts a dimension."""
    names = part if isinstance(part, tuple) else (part,)
    sizes = jax.sharding.get_abstract_mesh().shape
    return math.prod(sizes[name] for name in names if name is not None)


def checks_vma() -> bool:
    """Whether the ``shard_map`` being traced tracks over which axes values vary (``check_vma``)."""
    return bool(config._check_vma.value)


def vma_unchecked() -> contextlib.AbstractContextManager[None]:
    """Trace as inside a ``shard_map`` with ``check_vma=False``."""
    return config._check_vma(False)


def platform() -> str:
    """The platform of the devices of the mesh in scope, as "cpu", or of the default backend."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def concrete_mesh() -> jax.sharding.Mesh | None:
    """The mesh of ``jax.set_mesh``, with its devices; ``None`` where none or another is in use."""
    mesh = mesh_lib.get_concrete_mesh()
    named = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or dict(mesh.shape) != dict(named.shape) else mesh


def axis_sizes() -> Mapping[str, int]:
    """Every axis name in scope, of a mesh or of a ``vmap``, with its size.

    Those of the mesh come first, in its order: JAX keeps one environment of all whose names have
    the same sizes, in the order of whichever was made first in the process.
    """
    sizes = core.get_axis_env().axis_sizes
    ordered = [name for name in jax.sharding.get_abstract_mesh().axis_names if name in sizes]
    return {name: sizes[name] for name in dict.fromkeys((*ordered, *sizes))}


def batch_axes() -> set[str]:
    """The mesh axes over which some ``vmap`` in scope shards its batch (``spmd_axis_name``)."""
    return set(core.get_axis_env().spmd_axis_names)


def mesh_axes() -> tuple[str, ...]:
    """Manual axes of the mesh in scope, in its order: those that collectives may name."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(name for name in mesh.axis_names if name in mesh.manual_axes)


def is_fully_manual() -> bool:
    """Whether all axes of the mesh in scope are manual, so that XLA shards nothing by itself."""
    mesh = jax.sharding.get_abstract_mesh()
    return set(mesh.manual_axes) == set(mesh.axis_names)


def auto_sizes() -> tuple[int, ...]:
    """Sizes above 1 of the mesh axes in scope over which XLA shards as it likes."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(mesh.shape[name] for name in mesh.auto_axes if mesh.shape[name] > 1)


def explicit_axes() -> set[str]:
    """The mesh axes in scope over which types say how values are sharded."""
    return set(jax.sharding.get_abstract_mesh().explicit_axes)


def mesh_size() -> int:
    """Devices of the mesh in scope."""
    return jax.sharding.get_abstract_mesh().size


def nestable_axes() -> set[str]:
    """The axes in scope that are not manual, if a ``shard_map`` inside this one can take them all.

    It must take all of them: XLA aborts the process where some are left and one that it takes
    stands in the mesh before one that is manual already (JAX 0.12, "Manual axes must be sorted").
    """
    mesh = jax.sharding.get_abstract_mesh()
    return set() if mesh.auto_axes else set(mesh.explicit_axes)


def as_auto_axes(function: Callable, out_spec) -> Callable:
    """A function that is traced with all Explicit axes in Auto mode; its result has a spec."""
    return jax.sharding.auto_axes(function, axes=tuple(explicit_axes()), out_sharding=out_spec)


def is_eager() -> bool:
    """Whether operations inside ``shard_map`` run one by one, since no ``jit`` is around them."""
    return isinstance(core.unsafe_get_trace_stack(core.trace_ctx.trace)[0], ShardMapTrace)


def as_one_operation(function: Callable, x):
    """``function(x)``, which outside ``jit`` and under ``jax.disable_jit`` runs as one operation.

    Operation by operation JAX 0.12 gives a ``shard_map`` inside another one parts of the wrong
    shape, or refuses it. Under ``jit`` the function is called as it is: one that is jitted takes no
    tangents that Explicit axes shard in another way than the operand.
    """
    if not is_eager():
        return function(x)
    with jax.disable_jit(False):
        return jax.jit(function)(x)


# ---------------------------------------------------------------------- processes


def publish(key: str, value: str) -> None:
    """Publish a value to all processes that ``jax.distributed.initialize`` has connected.

    A value published again under the same key replaces the first.
    """
    _service().key_value_set(key, value, allow_overwrite=True)


def fetch(key: str, seconds: float) -> str | None:
    """A value that some process publishes under a key, or ``None`` if none does in time."""
    try:
        return _service().blocking_key_value_get(key, round(1000 * seconds))
    except jax.errors.JaxRuntimeError:
        return None


def discard(key: str) -> None:
    """Delete the value under a key, or all under a prefix that ends in a slash."""
    _service().key_value_delete(key)


def _service():
    client = distributed.global_state.client
    if client is None:
        raise RuntimeError("jax.distributed.initialize has not been called in this process")
    return client


@functools.cache
def check_before_running(kind: type, check: Callable[[str, list, list], None]) -> None:
    """From now on call a function each time that Python starts a program that carries something.

    That is the first time at least; later ones JAX mostly starts without Python. An error that the
    function raises prevents the run. JAX has no place for such a function, so what starts its
    programs is wrapped.

    Args:
        kind: the kind of the objects that ``carried`` of ``define`` returned.
        check: (name of the program, its objects of that kind, all devices that it runs on) -> None.
    """
    start = pxla.ExecuteReplicated.__call__

    @functools.wraps(start)
    def checked(self, *args):
        if carried := [item for item in self.keepalive or () if isinstance(item, kind)]:
            shardings = (*self.in_handler.in_shardings, *self.out_handler.out_shardings)
            devices = next(s.device_set for s in shardings if isinstance(s, jax.sharding.Sharding))
            check(self.name, carried, list(devices))
        return start(self, *args)

    pxla.ExecuteReplicated.__call__ = checked


@functools.cache
def before_compiling(change: Callable[[Any, list], None]) -> None:
    """From now on call a function with each program that JAX is about to compile.

    Args:
        change: (module of MLIR, which it may change; all devices that it runs on, in the order of
            their partitions) -> None. Its changes must be the same on all processes.
    """
    compile_ = compiler.compile_or_get_cached

    @functools.wraps(compile_)
    def changed(backend, computation, devices, *args, **kwargs):
        change(computation, list(np.asarray(devices).flat))
        return compile_(backend, computation, devices, *args, **kwargs)

    compiler.compile_or_get_cached = changed


def calls_in(module: Any, target: str) -> list[list[Any]]:
    """The custom calls of a module by their target, in order, one list per block.

    A function that holds such a call and is called several times becomes as many functions, so that
    each call of the program is an operation of its own.
    """
    functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in module.body.operations
                 if "sym_name" in f.attributes}  # fmt: skip

    def inside(operation: Any) -> list[Any]:
        found: list[Any] = []

        def visit(each: Any) -> Any:
            found.append(each)
            return ir.WalkResult.ADVANCE

        operation.operation.walk(visit)
        return found

    def is_target(each: Any) -> bool:
        if each.name != "stablehlo.custom_call":
            return False
        return ir.StringAttr(each.attributes["call_target_name"]).value == target

    def callee(each: Any) -> str | None:
        is_call = each.name in ("func.call", "call")
        return ir.FlatSymbolRefAttr(each.attributes["callee"]).value if is_call else None

    contents = {name: inside(f) for name, f in functions.items()}
    holding = {name for name, found in contents.items() if any(map(is_target, found))}
    while more := {n for n, found in contents.items() if holding & {*map(callee, found)}} - holding:
        holding |= more
    blocks: dict[int, list[Any]] = {}
    seen, left = set(), [name for name in functions if name == "main" and name in holding]
    while left:
        name = left.pop(0)
        for each in inside(functions[name]):
            if is_target(each):
                blocks.setdefault(hash(each.block), []).append(each)
            elif (other := callee(each)) in holding:
                if other in seen:
                    with module.context, ir.InsertionPoint(module.body):
                        copy = functions[other].operation.clone()
                        other = f"{other}_{len(functions)}"
                        copy.attributes["sym_name"] = ir.StringAttr.get(other)
                        each.attributes["callee"] = ir.FlatSymbolRefAttr.get(other)
                    functions[other] = copy
                    holding.add(other)
                seen.add(other)
                left.append(other)
    return list(blocks.values())


def set_call(call: Any, values: Mapping[str, int | Sequence[int]]) -> None:
    """Change attributes of a custom call that ``jax.ffi.ffi_call`` wrote with 64-bit integers."""
    with call.context:
        config = ir.DictAttr(call.attributes["mhlo.backend_config"])
        attributes = {entry.name: entry.attr for entry in config}
        for name, value in values.items():
            attributes[name] = (
                ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
                if isinstance(value, int)
                else ir.DenseI64ArrayAttr.get(value)
            )
        call.attributes["mhlo.backend_config"] = ir.DictAttr.get(attributes)


def coordinator() -> str | None:
    """The address, HOST:PORT, of the coordinator of ``jax.distributed``; ``None`` without one."""
    return distributed.global_state.coordinator_address


# ---------------------------------------------------------------------- threads


def thread_settings() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Settings of JAX that hold in this thread alone, to be entered in another one.

    Those of ``jax.enable_x64``, ``jax.default_matmul_precision`` and the like as context managers,
    the mesh of ``jax.set_mesh``, and the network and choices that are stated here: a program traced
    without them would be another one.
    """
    states = [s for s in config.config_states.values() if isinstance(s, config.State)]
    local = [(s, s.get_local()) for s in states if s.get_local() is not config.config_ext.unset]
    mesh = jax.sharding.get_mesh()
    stated = [(context, context.value) for context in (network_context, choices_context)]

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for state, value in local:
                stack.enter_context(state(value))
            for context, value in stated:
                stack.enter_context(context(value))
            if not mesh.empty:
                stack.enter_context(jax.set_mesh(mesh))
            yield

    return entered


# ---------------------------------------------------------------------- profiles


class ProfileSession:
    """A profile of what XLA runs until it is stopped; only one may be under way in a process.

    ``jax.profiler.ProfileSession`` where JAX has it (0.12), without files.

    Raises:
        RuntimeError: another profile is under way.
    """

    def __init__(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        options.host_tracer_level = 2  # that of XLA's operations on CPUs
        options.enable_hlo_proto = False  # programs would be most of the profile
        options.raise_error_on_start_failure = True
        if hasattr(jax.profiler, "ProfileSession"):
            self._session = jax.profiler.ProfileSession(profiler_options=options).start()
        else:
            self._session = _profiler.ProfilerSession(options)

    def stop(self) -> Any:
        """The profile, a ``jax.profiler.ProfileData``."""
        found = self._session.stop()
        if isinstance(found, bytes):
            return jax.profiler.ProfileData.from_serialized_xspace(found)
        return found


# ---------------------------------------------------------------------- programs

# Primitives that run a jaxpr once, with the names that the parameter of that jaxpr may have: JAX
# renames both. Of a custom derivative the function itself is run: ``jax.grad`` has done the rest.
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


class Inner(NamedTuple):
    """The program that a call runs once.

    Attributes:
        jaxpr, constants: the program and the values that it closed over.
        operands: the operands of the call that the program takes.
        is_remat: whether it reruns, in the backward pass of ``jax.checkpoint``.
        name: the name of the user's function; empty if it has none, or if the function is JAX's
            own.
    """

    jaxpr: Any
    constants: Sequence[Any]
    operands: slice
    is_remat: bool
    name: str


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


def parts_of(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr, closed or not, and the values of its constants."""
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
    jaxpr, constants = parts_of(called)
    if len(jaxpr.invars) != len(eqn.invars[operands]) or len(jaxpr.outvars) != len(eqn.outvars):
        return None
    given = params.get("name", "") if name in ("jit", "pjit") else ""
    is_remat = name in CHECKPOINTS and bool(params.get("differentiated"))
    return Inner(jaxpr, constants, operands, is_remat, "" if given.startswith("_") else given)


def loop_of(eqn: Any) -> Loop | None:
    """A scan's body, with the numbers of its constants and of its carry.

    ``None`` if this JAX describes scans by unknown parameters.
    """
    params = eqn.params
    if "num_carry" in params:  # JAX 0.10
        consts, carry = params["num_consts"], params["num_carry"]
        parts = consts, carry, len(eqn.invars) - consts - carry
    elif "ft_in" in params:
        parts = tuple(len(part) for part in params["ft_in"].unpack())
    else:
        parts = ()
    if len(parts) != 3 or sum(parts) != len(eqn.invars):
        return None
    jaxpr, constants = parts_of(params["jaxpr"])
    return Loop(jaxpr, constants, *parts[:2], int(params["length"]), bool(params["reverse"]))


def while_of(eqn: Any) -> While:
    """The condition and the body of a while loop."""
    params = eqn.params
    condition, body = (parts_of(params[name]) for name in ("cond_jaxpr", "body_jaxpr"))
    return While(condition, body, params["cond_nconsts"], params["body_nconsts"])


def inner_jaxprs(eqn: Any) -> Iterator[Any]:
    """All jaxprs in the parameters of an equation."""
    return core.jaxprs_in_params(eqn.params)


def first_inside(eqn: Any, names: Set[str]) -> Any:
    """The equation itself, or the first one it contains, of a primitive in ``names``."""
    if eqn.primitive.name in names:
        return eqn
    nested = (inner for jaxpr in inner_jaxprs(eqn) for inner in jaxpr.eqns)
    found = (first_inside(inner, names) for inner in nested)
    return next((inner for inner in found if inner is not None), None)


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


def as_function(closed: Any) -> Callable[..., Sequence[Any]]:
    """The function of a closed jaxpr."""
    return extend.jaxpr_as_fun(closed)


def run_equation(eqn: Any, operands: Sequence[Any], **params: Any) -> Sequence[Any]:
    """The results of an equation on operands that may be of other shapes.

    Args:
        params: parameters that replace those of the equation.
    """
    # As a program of one equation, which JAX runs with its context and the name of its scope.
    # Variables are new, since an operand may stand there twice, or be a literal.
    invars = [extend.Var(jax.typeof(x)) for x in operands]
    eqn = eqn.replace(invars=invars, params={**eqn.params, **params})
    names = ("",) * len(invars), ("",) * len(eqn.outvars)
    debug = extend.DebugInfo("an equation", eqn.primitive.name, *names)
    program = extend.Jaxpr((), invars, eqn.outvars, [eqn], eqn.effects, debug)
    closed = extend.ClosedJaxpr(program, ())  # type: ignore[attr-defined]
    return extend.jaxpr_as_fun(closed)(*operands)


def effects_of(eqn: Any) -> list[str]:
    """The kinds of side effects that an equation has, as "IO"; none of a pure one."""
    return sorted({str(effect).partition("<")[0] for effect in eqn.effects})


def source_of(eqn: Any) -> Any:
    """The line of an equation (``line_of``) as JAX holds it, with its ``name_stack_of``."""
    return eqn.source_info


def name_stack_of(eqn: Any) -> Any:
    """The names of the functions and transformations around an equation, as ``str`` gives them.

    Equations of one scope share one object.
    """
    return eqn.source_info.name_stack


# Installed packages whose lines a person did not write, and their callers' frames at most.
_MODEL_LIBRARIES = re.compile(
    r"/(?:site|dist)-packages/"
    r"(?:flax|optax|chex|haiku|equinox|distrax|diffrax|lineax|optimistix|jaxopt|orbax|einops)/"
)
_FRAMES = 64


def line_of(source: Any) -> str:
    """The line of user code; empty for an equation of JAX's own code, and without a source.

    In a layer of Flax or an optimizer of Optax it is the line that calls it, if there is one.
    """
    if source is None:
        return ""
    lines = source_info_util.summarize(source, num_frames=_FRAMES).splitlines()
    own = (line for line in reversed(lines) if not _MODEL_LIBRARIES.search(line))
    return next(own, lines[-1] if lines else "")


# ---------------------------------------------------------------------- equations

Equation = tuple[Primitive, dict[str, Any]]


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


def selecting() -> Equation:
    """A selection among arrays, elementwise, by an integer or Boolean array."""
    return lax.select_n_p, {}


def threefry(key_high: Any, key_low: Any, high: Any, low: Any) -> tuple[Any, Any]:
    """The two words that the Threefry generator makes of the words of a key and of a count."""
    return tuple(threefry2x32_p.bind(key_high, key_low, high, low))


# ---------------------------------------------------------------------- primitives

# What ``with_sharding_constraint`` binds.
SHARDING_CONSTRAINT = sharding_constraint_p

Shape = tuple[int, ...]


def define(
    name: str,
    *,
    shape: Callable[..., Shape],
    out_varying: Callable[..., frozenset[str]],
    weak: Callable[..., bool] = lambda weak, **_: weak,
    transpose: Callable | None,
    batch: Callable,
    run: Callable,
    platforms: Mapping[str, Callable],
    carried: Callable[..., Any] = lambda *_, **__: None,
) -> Primitive:
    """Declare a primitive of one operand and one result.

    Args:
        shape: (operand's shape, **params) -> result's shape.
        out_varying: (operand's varying axes, **params) -> result's.
        weak: (whether the operand's type is weak, **params) -> whether the result's is.
        transpose: for a linear primitive, (cotangent, **params) -> the operand's cotangent;
            ``None`` for one without derivatives.
        batch: (operand, batch dimension, **params) -> (result, its batch dimension); never called
            for a ``vmap`` over one of the primitive's own axes.
        run: (operand, **params) -> result in terms of other primitives, traced when lowering.
        platforms: the same for some platforms instead.
        carried: (operand's type as text, **params) -> what a program with the primitive carries
            (``check_before_running``), or ``None``.
    """
    primitive = Primitive(name)

    def abstract(x, *, axes, **params):
        types = x.mat.update(varying=out_varying(x.mat.varying, axes=axes, **params))
        out = x.update(
            shape=shape(x.shape, axes=axes, **params),
            weak_type=weak(x.weak_type, axes=axes, **params),
            manual_axis_type=types,
        )
        # The effect tells JAX which axes an equation needs, so that it refuses it outside of them.
        return out, {core.NamedAxisEffect(axis) for axis in axes.names}

    def transposed(cotangent, x, **params):
        return [transpose(cotangent, **params)]  # type: ignore[misc]

    def batched(axis, operands, dimensions, *, axes, **params):
        (x,), (dimension,) = operands, dimensions
        if dimension is None:
            return primitive.bind(x, axes=axes, **params), None
        return batch(x, dimension, axes=axes, **params)

    primitive.def_effectful_abstract_eval(abstract)
    primitive.def_impl(lambda x, **params: run(x, **params))
    if transpose is not None:
        ad.deflinear2(primitive, transposed)
    batching.fancy_primitive_batchers[primitive] = batched
    mlir.register_lowering(primitive, _carrying(run, carried))
    for platform, on_platform in platforms.items():
        rule = _carrying(on_platform, carried)
        mlir.register_lowering(primitive, rule, platform=platform)
    return primitive


def _carrying(run: Callable, carried: Callable[..., Any]) -> Callable:
    """The lowering rule of ``run``, which gives the program what it carries."""
    rule = mlir.lower_fun(run, multiple_results=False)

    def lowered(ctx, *operands, **params):
        item = carried(ctx.avals_in[0].str_short(), **params)
        # A program to be exported may carry nothing.
        if item is not None and not ctx.module_context.lowering_parameters.for_export:
            ctx.module_context.add_keepalive(item)
        return rule(ctx, *operands, **params)

    return lowered


def define_function(name: str, run: Callable, abstract: Callable, batch: Callable) -> Primitive:
    """Declare a primitive of several results that runs a function, on one device.

    Args:
        run: the operation on arrays, which is also what it is lowered to.
        abstract: (types of operands, **params) -> shapes and dtypes of the results.
        batch: (operands, their batch dimensions, **params) -> the same of the results.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    def typed(*operands, **params):
        made = abstract(*operands, **params)
        return [operands[0].update(shape=x.shape, dtype=x.dtype, weak_type=False) for x in made]

    primitive.def_impl(run)
    primitive.def_abstract_eval(typed)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    batching.primitive_batchers[primitive] = batch
    return primitive


def define_linear(name: str, run: Callable, transpose: Callable, rows: str) -> Primitive:
    """Declare a primitive that is linear in its first operand, with a transpose of its own.

    In place of ``jax.custom_derivatives.linear_call``, which has no rule for ``vmap``. Batched it
    is what ``run`` is, with the derivatives of that.

    Args:
        run: (operand, *integers, **params) -> a result with other rows.
        transpose: (cotangent, *integers, **params) -> the operand's cotangent.
        rows: the parameter that has the number of the result's rows; ``axis_name`` has the axes.
    """
    primitive = Primitive(name)

    def abstract(x, *_, axis_name, **params):
        out = x.update(shape=(params[rows], *x.shape[1:]), weak_type=False)
        return out, {core.NamedAxisEffect(axis) for axis in axis_name}

    def jvp(primals, tangents, **params):
        (x, *integers), (tangent, *_) = primals, tangents
        made = primitive.bind(x, *integers, **params)
        if type(tangent) is ad.Zero:
            return made, ad.Zero(jax.typeof(made).to_tangent_aval())
        return made, primitive.bind(tangent, *integers, **params)

    def transposed(cotangent, x, *integers, **params):
        found = ad.Zero(x.aval)
        if type(cotangent) is not ad.Zero:
            found = transpose(cotangent, *integers, **params)
        return [found, *[None] * len(integers)]

    def batched(operands, dimensions, **params):
        return jax.vmap(functools.partial(run, **params), dimensions)(*operands), 0

    primitive.def_effectful_abstract_eval(abstract)
    primitive.def_impl(run)
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transposed
    batching.primitive_batchers[primitive] = batched
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=False))
    return primitive


# ---------------------------------------------------------------------- registries


def registered() -> list[Primitive]:
    """All primitives for which the installed JAX has a batching rule or a lowering, by name."""
    primitives = {*batching.fancy_primitive_batchers, *mlir._lowerings}
    for platform in mlir._platform_specific_lowerings.values():
        primitives |= {*platform}
    return sorted(primitives, key=lambda primitive: primitive.name)


def broadcasts(primitive: Primitive) -> bool:
    """Whether JAX batches a primitive by broadcasting its operands, as it does elementwise ones.

    ``lax.naryop`` defines primitives in this way. The caller must check the shapes of the results,
    since ``random_split``, for example, has this batching rule without being elementwise.
    """
    rule = batching.fancy_primitive_batchers.get(primitive)
    batchers = (batching.broadcast_batcher, batching.vectorized_batcher)
    return isinstance(rule, functools.partial) and rule.func in batchers


def decomposition(primitive: Primitive) -> Callable[..., Any] | None:
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
