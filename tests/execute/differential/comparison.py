"""Random calls of the functions, each beside the same call of ``jax.lax``.

A case draws a function and its options, a mesh and the modes of its axes, a dtype, a shape, a
transformation, a schedule and a lowering. Both calls stand in one program. Compared are whether an
error is raised while tracing, the type of the result inside ``shard_map`` (shape, dtype, weak type,
axes it varies over), its values on every rank, bitwise, and its sharding over axes in Auto mode.
Floats hold small integers, whose sums are exact in every order. Where ``jax.lax`` refuses a case or
XLA cannot compile it, values are compared with NumPy's (``tests.execute.differential.oracle``).

    OMP_WAIT_POLICY=passive python -m tests.execute.differential --cases 2000 --seed 0
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import math
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16"

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from tests.execute.differential import oracle

OLD = jax.__version_info__ < (0, 11)

FUNCTIONS = (
    *("psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all"),
    "pbroadcast",
)
FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = (
    *FLOATS,
    *("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "bool"),
    *("complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)
MESHES = ((4,), (2, 4), (2, 2), (3,), (8,), (4, 2), (2, 2, 2), (1, 4), (6,))
TRANSFORMS = (
    *("none", "none", "none", "vjp", "vjp", "jvp", "linearize", "remat", "grad of grad"),
    *("vmap", "vmap spmd", "vmap own axis", "vmap both", "vmap vjp", "jit"),
)
SCHEDULES = (None, None, "ring", "direct", "bucket", "tacos", "forestcoll")


@dataclasses.dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        sides: of the mesh, its axes named x, y, z.
        kind: mode of the axes that are not manual, "auto" or "explicit".
        manual: the manual axes.
        axis_name: the axes that the collective runs over.
        varies: the manual axes over which the operand differs; it is the same along the others.
        shape: of the operand on a rank.
        operand: "array", "weak" for one whose type is weak, "symbolic" for one whose leading
            dimension is, or a constant: "python", "numpy".
        sharded: the dimension of the operand that an axis outside the ``shard_map`` shards.
    """

    function: str
    options: tuple[tuple[str, object], ...]
    sides: tuple[int, ...]
    kind: str
    manual: tuple[str, ...]
    axis_name: str | tuple[str, ...]
    varies: tuple[str, ...]
    check_vma: bool
    x64: bool
    dtype: str
    shape: tuple[int, ...]
    operand: str
    sharded: int | None
    transform: str
    eager: bool
    schedule: str | None
    lowering: str

    @property
    def names(self) -> tuple[str, ...]:
        """Axes of the mesh."""
        return ("x", "y", "z")[: len(self.sides)]

    @property
    def rest(self) -> tuple[str, ...]:
        """Axes of the mesh that are not manual."""
        return tuple(name for name in self.names if name not in self.manual)

    def size(self, names) -> int:
        """Ranks along some axes."""
        names = (names,) if isinstance(names, str) else names
        return math.prod(self.sides[self.names.index(name)] for name in names)


# ---------------------------------------------------------------------- drawing


def draw(seed: int) -> Case:
    """The case of a seed."""
    r = random.Random(seed)
    function = r.choice(FUNCTIONS)
    sides = r.choice(MESHES[:5] if r.random() < 0.7 else MESHES)
    names = ("x", "y", "z")[: len(sides)]
    manual = names if r.random() < 0.6 else tuple(r.sample(names, r.randint(1, len(names))))
    manual = tuple(name for name in names if name in manual)
    over = tuple(r.sample(manual, r.randint(1, len(manual))))
    axis_name = over[0] if len(over) == 1 and r.random() < 0.8 else over
    n = math.prod(sides[names.index(name)] for name in over)
    varies = manual if r.random() < 0.8 else tuple(a for a in manual if r.random() < 0.5)
    groups = _groups(r, n) if r.random() < 0.12 else None
    dtype = r.choice(FLOATS[:3] if r.random() < 0.4 else DTYPES)
    if function == "pmean" and n & (n - 1):
        dtype = "int32"  # a quotient by n is then a float32 of an exact sum
    shape, options = _options(r, function, n if groups is None else len(groups[0]))
    if groups is not None and function != "pbroadcast":
        options["axis_index_groups"] = groups
    operand = r.choices(
        ("array", "weak", "symbolic", "python", "numpy"), (0.78, 0.06, 0.08, 0.04, 0.04)
    )[0]
    if operand == "python":
        shape = ()
    rest = math.prod(sides[names.index(a)] for a in names if a not in manual)
    free = [d for d, size in enumerate(shape) if size and size % rest == 0]
    inexact = dtype.startswith(("float", "bfloat", "complex"))
    choices = TRANSFORMS if inexact else [t for t in TRANSFORMS if t in ("none", "jit", "vmap")]
    transform = "none" if operand in ("python", "numpy") else r.choice(choices)
    return Case(
        function=function,
        options=tuple(options.items()),
        sides=sides,
        kind=r.choice(("auto", "explicit")),
        manual=manual,
        axis_name=axis_name,
        varies=varies,
        check_vma=r.random() < 0.6,
        x64=r.random() < 0.4,
        dtype=dtype,
        shape=shape,
        operand=operand,
        sharded=r.choice(free) if free and rest > 1 else None,
        transform="none" if operand == "symbolic" and "grad" in transform else transform,
        eager=r.random() < 0.03,
        schedule=r.choice(SCHEDULES),
        lowering=r.choice(("auto", "auto", "ssa", "scan", "pallas")),
    )


def _groups(r: random.Random, n: int) -> list[list[int]]:
    size = r.choice([d for d in range(1, n + 1) if n % d == 0])
    ranks = r.sample(range(n), n)
    return [ranks[i : i + size] for i in range(0, n, size)]


def _options(r: random.Random, function: str, n: int) -> tuple[tuple[int, ...], dict]:
    """A shape, and options that mostly suit it."""
    sizes = (1, 2, 3, 4, 8) if r.random() < 0.9 else (0, 1, 5)
    shape = [r.choice(sizes) for _ in range(r.randint(0, 3))]
    tiled, negative = r.random() < 0.5, r.random() < 0.3
    options: dict[str, object] = {}

    def place(d: int, ndim: int) -> int:
        return d - ndim if negative else d

    if function == "pbroadcast":
        options["source"] = r.randrange(n)
    if function == "all_gather":
        ndim = len(shape) + (not tiled)
        options |= {"tiled": tiled, "to": r.choice(("varying", "varying", "invarying"))}
        options["axis"] = place(r.randrange(max(1, ndim)), ndim)
    if function in ("psum_scatter", "all_to_all"):
        at = r.randint(0, len(shape))
        suits = r.random() < 0.92
        shape.insert(at, (n * r.choice((1, 2, 3)) if tiled else n) if suits else r.randint(0, 9))
        options["tiled"] = tiled
        if function == "psum_scatter":
            options["scatter_dimension"] = place(at, len(shape))
        else:
            options["split_axis"] = place(at, len(shape))
            options["concat_axis"] = place(r.randrange(len(shape)), len(shape))
    return tuple(shape), options


# ---------------------------------------------------------------------- running


def _call(module, case: Case):
    extra = {"schedule": case.schedule, "lowering": case.lowering} if module is jc else {}
    if module is jc and case.schedule is not None:
        extra["schedule"] = _suited(case)
    return lambda v: getattr(module, case.function)(
        v, case.axis_name, **dict(case.options), **extra
    )


def _safe(case: Case):
    """The call of ``jax.lax`` in a form that XLA for CPU (of JAX 0.12) can compile.

    It has no broadcast, and aborts the process when it promotes reductions of 16 bits beside axes
    that are not manual.
    """
    call = _call(lax, case)
    if case.function == "pbroadcast":
        # Which XLA for CPU does not have.
        source = dict(case.options)["source"]
        return lambda v: lax.all_gather(v, case.axis_name)[source]
    kind = np.dtype(getattr(jnp, case.dtype)).kind
    wide = {"i": jnp.int32, "u": jnp.uint32}.get(kind, jnp.float32)
    if not case.rest or case.dtype not in ("float16", "bfloat16", "int16"):
        return call
    return lambda v: call(jnp.asarray(v).astype(wide)).astype(jnp.asarray(v).dtype)


def _suited(case: Case) -> str | None:
    """The schedule, where its synthesizer is defined for the call."""
    if case.function in ("pbroadcast", "all_to_all"):
        return "direct" if case.schedule == "direct" and case.function == "all_to_all" else None
    grouped = "axis_index_groups" in dict(case.options)
    return "ring" if grouped and case.schedule in ("bucket", "forestcoll") else case.schedule


def _small(shape, like, seed: int) -> jax.Array:
    """Small integers, different from place to place, that vary as ``like`` does."""
    most = 2 if "float8" in str(like.dtype) else 4
    count = math.prod(shape)
    flat = (lax.iota(jnp.int32, count) * 7 + seed) % 5 % most
    value = flat.reshape(shape).astype(like.dtype)
    missing = tuple(sorted(jax.typeof(like).mat.varying - jax.typeof(value).mat.varying))
    return lax.pcast(value, missing, to="varying") if missing else value


def _cotangent(out) -> jax.Array:
    """A cotangent, which has the sharding of the result; a tangent may have another."""
    value, spec = _small(out.shape, out, 1), jax.typeof(out).sharding.spec
    return jax.reshard(value, spec) if any(spec) else value


def _applied(function, case: Case, v):
    """The result of a transformation of the function for an operand."""

    def pulled(f, x):
        out, pull = jax.vjp(f, x)
        return out, pull(_cotangent(out))[0]

    how = case.transform
    if how == "vjp":
        return pulled(function, v)
    if how == "remat":
        return pulled(jax.checkpoint(function), v)
    if how == "jvp":
        return jax.jvp(function, (v,), (_small(v.shape, v, 2),))
    if how == "linearize":
        out, push = jax.linearize(function, v)
        return out, push(_small(v.shape, v, 3))
    if how == "grad of grad":
        return jax.jvp(lambda x: pulled(lambda y: function(y * y), x)[1], (v,), (v,))
    if how == "jit":
        return jax.jit(function)(v)
    if how.startswith("vmap"):
        stacked = jnp.stack([v, v + v], axis=-1)
        if how == "vmap own axis":
            own = dataclasses.replace(case, axis_name="own")
            inner = _call(lax if function.__module__ == "lax" else jc, own)
            return jax.vmap(inner, in_axes=-1, out_axes=0, axis_name="own")(stacked)
        if how == "vmap both":
            return jax.vmap(jax.vmap(function), in_axes=-1)(jnp.stack([stacked, stacked], 0))
        if how == "vmap vjp":
            return jax.vmap(lambda x: pulled(function, x), in_axes=-1, out_axes=-1)(stacked)
        free = how == "vmap spmd" and case.rest and case.sharded is None
        spmd = case.rest[0] if free else None
        return jax.vmap(function, in_axes=-1, out_axes=0, spmd_axis_name=spmd)(stacked)
    return function(v)


def _type(out):
    """The description of a result: constants by their Python type."""
    if not isinstance(out, jax.Array):
        return type(out).__name__, np.shape(out), str(np.asarray(out).dtype), repr(out)
    t = jax.typeof(out)
    return t.shape, str(t.dtype), t.weak_type, frozenset(t.mat.varying)


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0][:160]


class Run:
    """A case's program, for one module or both; that of ``jax.lax`` as it stands if ``raw``."""

    def __init__(self, case: Case, raw: bool = False):
        self.case, self.raw = case, raw
        explicit = AxisType.Explicit if case.kind == "explicit" else AxisType.Auto
        count = math.prod(case.sides)
        devices = np.array(jax.devices()[:count]).reshape(case.sides)
        self.mesh = Mesh(devices, case.names, axis_types=(explicit,) * len(case.sides))
        self.types: dict[str, list] = {}
        (self.n,) = export.symbolic_shape("n")

    def operand(self):
        """The whole operand, its spec, and the spec of the whole manual axes."""
        case = self.case
        lead = case.varies
        sizes = (case.size(lead), *case.shape)
        r = np.random.default_rng(0)
        most = 2 if "float8" in case.dtype else 4
        x = r.integers(0, most, sizes)
        if case.dtype == "bool":
            x = x > 1
        dtype = jax.dtypes.canonicalize_dtype(np.dtype(getattr(jnp, case.dtype)))
        x = np.asarray(x).astype(dtype)
        dims: list = [None] * len(case.shape)
        if case.sharded is not None and case.sharded < len(dims):
            dims[case.sharded] = case.rest
        return x, P(lead or None, *dims), P(lead or None)

    def body(self, modules, executes: bool):
        """The function under ``shard_map`` for some modules, results stacked over manual axes."""
        case = self.case

        def one(module, v):
            name = "lax" if module is lax else "jc"
            safe = module is lax and executes and not self.raw
            call = _safe(case) if safe else _call(module, case)
            function = lambda u: call(u)  # noqa: E731
            function.__module__ = name
            v = v[0]
            if case.operand == "weak":
                number = {"i": 3, "u": 3, "c": 2j, "b": True}.get(np.dtype(v.dtype).kind, 2.0)
                v = lax.broadcast(number, v.shape)
            if case.operand == "python":
                v = {"b": True, "i": 3, "u": 3, "c": 2j}.get(np.dtype(v.dtype).kind, 2.5)
            if case.operand == "numpy":
                v = np.ones(case.shape, v.dtype)
            out = jax.tree.leaves(_applied(function, case, v))
            if not executes:
                self.types[name] = [_type(leaf) for leaf in out]
            return [self._spread(leaf) for leaf in out]

        return lambda v: {str(m.__name__): one(m, v) for m in modules}

    def _spread(self, leaf):
        leaf = jnp.asarray(leaf)
        missing = tuple(a for a in self.case.manual if a not in jax.typeof(leaf).mat.varying)
        if missing and self.case.check_vma:
            leaf = lax.pcast(leaf, missing, to="varying")
        return lax.expand_dims(leaf, (0,))

    def mapped(self, *modules, executes: bool = True):
        """``jit`` of ``shard_map``."""
        case = self.case
        _, _, spec = self.operand()
        mapped = jax.shard_map(
            self.body(modules, executes),
            mesh=self.mesh,
            in_specs=spec,
            out_specs=P(case.manual),
            axis_names=set(case.manual),
            check_vma=case.check_vma,
        )
        return mapped if case.eager else jax.jit(mapped)

    def placed(self):
        """The operand on its devices."""
        x, spec, _ = self.operand()
        return jax.device_put(x, NamedSharding(self.mesh, spec))

    def traced(self, module) -> str | None:
        """The error that tracing raises, or None."""
        x, spec, _ = self.operand()
        shape = x.shape
        if self.case.operand == "symbolic" and len(shape) > 1:
            shape = self._symbolic(shape)
        like = jax.ShapeDtypeStruct(shape, x.dtype, sharding=NamedSharding(self.mesh, spec))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                jax.eval_shape(self.mapped(module, executes=False), like)
        except Exception as error:
            return f"{type(error).__name__}: {_line(error)}"
        return None

    def _symbolic(self, shape):
        # n is 1 in the end; a size of 0 stands for n itself, and n is 0.
        return (shape[0], shape[1] * self.n if shape[1] else self.n, *shape[2:])

    def values(self, *modules):
        """Results by module, one array a leaf with every rank's part."""
        x = self.placed()
        if self.case.operand == "symbolic" and x.ndim > 1 and not self.case.eager:
            # Exported, not run: JAX cannot refine shapes inside shard_map, and aborts.
            shape = self._symbolic(x.shape)
            like = jax.ShapeDtypeStruct(shape, x.dtype, sharding=x.sharding)
            exported = export.export(jax.jit(self.mapped(*modules)))(like)
            return {str(m.__name__): [] for m in modules if exported.mlir_module()}
        return self.mapped(*modules)(x)


# ---------------------------------------------------------------------- comparing


# Operands and types that the functions take or keep beyond ``jax.lax``, as docs/execution.md lists
# it.
BEYOND = {
    "groups": "groups under `check_vma` and under `vmap`",
    "grouped maxima": "maxima over several groups typed as varying",
    "explicit": "operands sharded over Explicit axes outside the `shard_map`",
    "partly": "sums over axes of which an operand varies over some",
    "pbroadcast": "derivatives and `vmap` of `pbroadcast`, and operands that do not vary",
    "psum_scatter": "`vmap` of an untiled `psum_scatter`",
    "all_to_all": "derivatives of an untiled `all_to_all`",
    "negative": "negative dimensions of `all_to_all`, and under `vmap`, on JAX 0.10",
    "several": "`vmap` beside collectives over several axes",
    "compiled": "programs that XLA for CPU cannot compile from `jax.lax`",
}


def beyond(case: Case) -> str | None:
    """Why ``jax.lax`` may refuse a case that the functions take, a key of ``BEYOND``."""
    options = dict(case.options)
    over = {case.axis_name} if isinstance(case.axis_name, str) else set(case.axis_name)
    constant = case.operand in ("python", "numpy", "weak") or not over <= set(case.varies)
    batched = case.transform.startswith("vmap")
    applies = {
        "groups": "axis_index_groups" in options and (case.check_vma or batched),
        "partly": case.check_vma and over & set(case.varies) and over - set(case.varies),
        "explicit": case.kind == "explicit" and (case.rest or case.function == "psum_scatter"),
        "negative": OLD and _is_negative(options),
        "all_to_all": case.function == "all_to_all" and case.transform not in ("none", "jit"),
        "pbroadcast": case.function == "pbroadcast"
        and (case.transform not in ("none", "jit") or (case.check_vma and constant)),
        "psum_scatter": case.function == "psum_scatter" and batched,
        "several": len(over) > 1 and batched,
    }
    return next((key for key, holds in applies.items() if holds), None)


def _is_negative(options: dict) -> bool:
    given = (options.get(name, 0) for name in ("split_axis", "concat_axis", "scatter_dimension"))
    return min(given) < 0


# Equal in all that is compared; refused by both; taken where ``jax.lax`` refuses, with the values
# that NumPy gives; different.
VERDICTS = ("same", "refused", "beyond", "differs")


def compare(case: Case) -> tuple[str, str]:
    """One of ``VERDICTS``, and its reason."""
    with jax.enable_x64(case.x64), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _compare(case)


def _compare(case: Case) -> tuple[str, str]:
    run, options = Run(case), dict(case.options)
    ours, theirs = run.traced(jc), run.traced(lax)
    if theirs and ours:
        return "refused", theirs
    if ours:
        with contextlib.suppress(Exception):
            jax.block_until_ready(run.values(lax))
            return "differs", f"only ours refuses: {ours}"
        return "refused", ours
    if theirs:
        why = beyond(case)
        return _taken(run, why) if why else ("differs", f"only lax refuses: {theirs}")
    if run.types["jc"] != run.types["lax"]:
        grouped = case.check_vma and "axis_index_groups" in options
        if case.function in ("pmax", "pmin") and grouped and _vary_more(run.types):
            return _taken(run, "grouped maxima")
        if OLD and _is_negative(options):
            return _taken(run, "negative")
        return "differs", f"types {run.types['jc']} not {run.types['lax']}"
    try:
        out = run.values(jc, lax)
        jax.tree.map(_read, out)
    except Exception:
        return _one_by_one(run)
    ours, theirs = (out[str(m.__name__)] for m in (jc, lax))
    for got, want in zip(ours, theirs, strict=True):
        a, b = _read(got), _read(want)
        if not _equal(a, b):
            return "differs", f"values {a.ravel()[:8]} not {b.ravel()[:8]}"
        if case.rest and not _sharded_alike(got, want):
            return "differs", f"sharding {got.sharding} not {want.sharding}"
    return "same", ""


def _vary_more(types: dict[str, list]) -> bool:
    """Whether types differ only in that ours say of more axes that values differ along them."""
    both = zip(types["jc"], types["lax"], strict=True)
    return all(a[:3] == b[:3] and a[3] >= b[3] for a, b in both)


def _taken(run: Run, why: str) -> tuple[str, str]:
    """The verdict on a case that only the functions take: whether values are those of NumPy."""
    case = run.case
    x, *_ = run.operand()
    want = oracle.values(case, oracle.operands(case, x))
    try:
        found = jax.tree.map(_read, run.values(jc)[jc.__name__])
    except Exception as error:
        return "differs", f"only ours takes it, and fails: {type(error).__name__}: {_line(error)}"
    if want is None or not found:
        return "beyond", why
    want = want.astype(found[0].dtype)
    near = case.function == "pmean" and want.dtype.kind == "f" and found[0].shape == want.shape
    if near:  # XLA multiplies by the rounded 1 / n, which may be one unit in the last place off
        want = np.where(abs(found[0] - want) <= np.spacing(abs(want)), found[0], want)
    if found[0].shape != want.shape or not _equal(found[0], want):
        return "differs", f"values {found[0].ravel()[:8]} not {want.ravel()[:8]} of NumPy"
    return "beyond", f"{why}, values"


def _one_by_one(run: Run) -> tuple[str, str]:
    said = {}
    for module in (jc, lax):
        try:
            jax.tree.map(_read, run.values(module))
        except Exception as error:
            said[module] = f"{type(error).__name__}: {_line(error)}"
    if jc in said and lax not in said:
        return "differs", f"only ours fails: {said[jc]}"
    if lax in said and jc not in said:
        return _taken(run, "compiled")
    return ("refused", said[jc]) if said else ("differs", "fails only beside the other")


def _read(result: jax.Array) -> np.ndarray:
    """A result in NumPy; an empty one, which JAX 0.10 cannot put together, by its shape."""
    result = jax.block_until_ready(result)
    return np.asarray(result) if result.size else np.zeros(result.shape, result.dtype)


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.kind in "biu":
        return np.array_equal(a, b)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    return np.array_equal(a.astype(wide), b.astype(wide), equal_nan=True)


def _sharded_alike(got, want) -> bool:
    """Whether a device has as much of a result as of that of ``jax.lax``, or less."""
    shard = [math.prod(x.sharding.shard_shape(x.shape)) for x in (got, want)]
    return shard[0] <= shard[1]


# ---------------------------------------------------------------------- many


def work(first: int, end: int, *modules: str) -> None:
    """Compare the cases of some seeds, a line of JSON before and after each."""
    for seed in range(first, end):
        print(json.dumps([seed]), flush=True)
        verdict = compare(draw(seed)) if not modules else _alone(draw(seed), *modules)
        print(json.dumps([seed, *verdict]), flush=True)
        if seed % 100 == 99:
            jax.clear_caches()


def _alone(case: Case, name: str) -> tuple[str, str]:
    """Run one module's program, to see whether XLA aborts; "raw" is ``jax.lax`` as it stands."""
    with jax.enable_x64(case.x64), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "jc":
            return _taken(Run(case), "compiled")
        try:
            jax.tree.map(_read, Run(case, raw=name == "raw").values(lax))
        except Exception as error:
            return "fails", _line(error)
    return "runs", name


def compared(first: int, count: int) -> Iterator[tuple[int, str, str]]:
    """(seed, verdict, what about) of cases, compared in processes that XLA may abort."""
    end = first + count
    while first < end:
        seed, found = None, None
        for line in _lines(first, end):
            seed, *found = json.loads(line)
            if found:
                yield seed, *found
        if seed is None:
            raise RuntimeError("the process that compares cases did not start")
        if not found:
            yield seed, *_aborted(seed)
        first = seed + 1


def _aborted(seed: int) -> tuple[str, str]:
    """The verdict on a case at which XLA aborts: whether it does so on either program alone."""
    said = {name: [*_lines(seed, seed + 1, name)] for name in ("jc", "lax", "raw")}
    # Of a program that aborts there is only the first line, of its start.
    found = {name: json.loads(lines[-1])[1:] for name, lines in said.items()}
    if found["jc"] and not found["lax"]:
        return tuple(found["jc"])
    if not found["jc"] and (not found["raw"] or found["raw"][0] == "fails"):
        return "refused", "XLA aborts"
    return "differs", f"XLA aborts; alone: {found}"


def _lines(*arguments) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.execute.differential", "--work", *map(str, arguments)]
    # Most of the time goes into compiling, and sums of small integers do not depend on how well.
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    with subprocess.Popen(
        command,
        env=os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {flags}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield from process.stdout or ()


def main() -> int:
    """Compare cases, print differences and how many of each verdict; 1 if any differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        first, end, *modules = arguments.work
        work(int(first), int(end), *modules)
        return 0
    verdicts: collections.Counter[str] = collections.Counter()
    for seed, verdict, about in compared(arguments.seed, arguments.cases):
        verdicts[verdict] += 1
        if verdict == "beyond":
            key, _, checked = about.partition(", ")
            verdicts[f"beyond: {BEYOND[key]}"] += 1
            verdicts["values compared with NumPy's"] += bool(checked)
        if verdict == "differs":
            print(f"seed {seed}: {about}\n    {draw(seed)}", flush=True)
        if sum(verdicts[v] for v in VERDICTS) % 100 == 0:
            print(f"up to seed {seed}: {dict(verdicts)}", file=sys.stderr, flush=True)
    print(f"jax {jax.__version__}")
    for verdict, count in sorted(verdicts.items()):
        print(f"{count:6d} {verdict}")
    return int(verdicts["differs"] > 0)
