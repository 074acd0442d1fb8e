"""The programs of a case: the call of one module or both, transformed, under ``shard_map``."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.choice.defaults import synthesized
from jaxcoll.synth import synthesizer_named
from tests.execute.differential.cases import Case


def _call(module, case: Case):
    extra = {"schedule": case.schedule, "lowering": case.lowering} if module is jc else {}
    if module is jc and case.axis_name != OWN:
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
    return lambda v: call(jnp.asarray(v).astype(wide)).astype(jax.eval_shape(call, v).dtype)


# The axis of a ``vmap``, over which nothing is sent.
OWN = "own"

KINDS = {
    "all_gather": "all_gather",
    "psum_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "pbroadcast": "broadcast",
}


def _suited(case: Case) -> str | None:
    """The schedule, where its synthesizer is defined for the call."""
    options: dict[str, Any] = dict(case.options)
    groups: Any = options.get("axis_index_groups")
    kind: Any = KINDS.get(case.function, "all_reduce")
    if case.schedule is None:
        return None
    try:
        collective = Collective(kind, case.size(case.axis_name), 1, groups, options.get("source"))
        synthesized(synthesizer_named(case.schedule), collective)
    except CollectiveError:
        return None
    return case.schedule


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
            own = dataclasses.replace(case, axis_name=OWN)
            inner = _call(lax if function.__module__ == "lax" else jc, own)
            return jax.vmap(inner, in_axes=-1, out_axes=0, axis_name=OWN)(stacked)
        if how == "vmap both":
            return jax.vmap(jax.vmap(function), in_axes=-1)(jnp.stack([stacked, stacked], 0))
        if how == "vmap vjp":
            return jax.vmap(lambda x: pulled(function, x), in_axes=-1, out_axes=-1)(stacked)
        free = [a for a in case.rest if not any(a in names for names in case.sharded)]
        spmd = free[0] if how == "vmap spmd" and free else None
        return jax.vmap(function, in_axes=-1, out_axes=0, spmd_axis_name=spmd)(stacked)
    return function(v)


def _type(out):
    """The description of a result: constants by their Python type."""
    if not isinstance(out, jax.Array):
        return type(out).__name__, np.shape(out), str(np.asarray(out).dtype), repr(out)
    t = jax.typeof(out)
    return t.shape, str(t.dtype), t.weak_type, frozenset(t.mat.varying)


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:160]


class Run:
    """A case's program, for one module or both; that of ``jax.lax`` as it stands if ``raw``."""

    def __init__(self, case: Case, raw: bool = False):
        self.case, self.raw = case, raw
        types = [AxisType.Explicit if k == "explicit" else AxisType.Auto for k in case.kinds]
        count = math.prod(case.sides)
        devices = np.array(jax.devices()[:count]).reshape(case.sides)
        self.mesh = Mesh(devices, case.names, axis_types=tuple(types))
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
        dims = [names or None for names in case.sharded] if case.shape else []
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
            return f"{type(error).__name__}: {first_line(error)}"
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
