"""JAX's internals are what ``jax_internals`` takes them for; if not, say which JAX."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax
from jax.sharding import PartitionSpec as P

import jaxcoll
from jaxcoll.execute import jax_internals
from jaxcoll.execute.layout import Axes
from tests.execute.harness import mesh_of

VERSION = f"jax {jax.__version__}; jax_internals.py was proved on {', '.join(jax_internals.PROVED)}"


def inside(function, **options):
    """What ``function`` returns when it is traced in a ``shard_map`` over axes x and y."""
    seen = []

    def body(v):
        seen.append(function(v))
        return v

    wrapped = jax.shard_map(body, mesh=mesh_of(2, 4), in_specs=P("x"), out_specs=P("x"), **options)
    jax.eval_shape(wrapped, jax.ShapeDtypeStruct((8,), jnp.float32))
    return seen[0]


def test_types_of_manual_axes():
    assert inside(jax_internals.varying) == {"x"}, VERSION
    assert inside(lambda v: jax_internals.varying(lax.psum(v, "x"))) == set(), VERSION
    both = lambda v: jax_internals.varying(lax.pcast(v, "y", to="varying"))  # noqa: E731
    assert inside(both) == {"x", "y"}, VERSION
    assert inside(jax_internals.unreduced) == set(), VERSION


def test_whether_types_are_checked():
    assert inside(lambda v: jax_internals.checks_vma()) is True, VERSION
    assert inside(lambda v: jax_internals.checks_vma(), check_vma=False) is False, VERSION


def test_whether_operations_run_one_by_one():
    seen = []

    def body(v):
        seen.append(jax_internals.is_eager())
        jax.vmap(jax.grad(lambda u: (seen.append(jax_internals.is_eager()), u * u)[1]))(v)
        return v

    f = jax.shard_map(body, mesh=mesh_of(4), in_specs=P("x"), out_specs=P("x"))
    f(jnp.ones(4))
    jax.jit(f)(jnp.ones(4))
    assert seen == [True, True, False, False], VERSION


def test_axes_in_scope():
    sizes = inside(lambda v: jax_internals.axis_sizes())
    assert sizes == {"x": 2, "y": 4}, VERSION
    assert jax_internals.axis_sizes() == {}, VERSION
    assert inside(lambda v: jax_internals.mesh_axes()) == ("x", "y"), VERSION
    assert inside(lambda v: jax_internals.mesh_axes(), axis_names={"x"}) == ("x",), VERSION
    assert inside(lambda v: jax_internals.mesh_size()) == 8, VERSION


def test_axes_that_shard_a_batch():
    def seen(v):
        found.append(jax_internals.batch_axes())
        return v

    found: list = []
    inside(jax.vmap(seen, spmd_axis_name="y"), axis_names={"x"})
    inside(jax.vmap(seen), axis_names={"x"})
    assert found == [{"y"}, set()], VERSION


def test_what_a_program_carries_is_seen_before_it_runs():
    class Item:
        """Carried by the program below alone."""

    seen, item = [], Item()
    primitive = jax_internals.define(
        "carrying",
        shape=lambda shape, **_: shape,
        out_varying=lambda varying, **_: varying,
        transpose=None,
        batch=lambda *_, **__: None,
        run=lambda x, **_: x + 1,
        platforms={},
        carried=lambda text, **_: item if text.startswith("float32[2]") else None,
    )

    def check(*what):
        seen.append(what)
        if len(seen) == 1:
            raise ValueError("not yet")

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh_of(2, 4), in_specs=P("x"), out_specs=P("x"))
    def program(x):
        return primitive.bind(x, axes=Axes(("x",), (2,), ("x",)))

    x = jnp.zeros(4)
    jax_internals.check_before_running(Item, check)
    program.lower(x).compile()
    assert not seen, VERSION
    with pytest.raises(ValueError, match="not yet"):
        program(x)
    assert program(x).tolist() == [1.0] * 4, VERSION
    assert all("program" in name and items == [item] for name, items, _ in seen), VERSION
    assert len(seen) == 2, VERSION
    assert set(seen[0][2]) == set(jax.devices()[:8]), VERSION
    export.export(program)(x)  # which refuses programs that carry anything


def test_the_service_between_processes_has_the_calls_that_are_used():
    from jax._src import distributed
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    client = _jax.DistributedRuntimeClient
    assert hasattr(distributed.global_state, "client"), VERSION
    assert hasattr(client, "key_value_set"), VERSION
    assert hasattr(client, "blocking_key_value_get"), VERSION
    assert hasattr(client, "key_value_delete"), VERSION


def test_no_other_file_touches_internals():
    package = Path(jaxcoll.__file__).parent
    touching = re.compile(r"jax\._src|jax\.interpreters|jax\.extend|\.mat\b")
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if touching.search(path.read_text())
    }
    assert found == {"execute/jax_internals.py"}


def test_profiles_name_the_operations_of_programs():
    total = jax.jit(
        jax.shard_map(lambda v: lax.psum(v, "x"), mesh=mesh_of(8), in_specs=P("x"), out_specs=P())
    )
    x = jnp.ones((8, 64))
    total(x).block_until_ready()
    session = jax_internals.ProfileSession()
    total(x).block_until_ready()
    data = session.stop()
    events = [e for plane in data.planes for line in plane.lines for e in line.events]
    compiled = str(total.lower(x).compile().as_text())
    found = [e for e in events if f"%{e.name} = " in compiled and e.end_ns > e.start_ns]
    assert len(found) >= 8, VERSION


# ---------------------------------------------------------------------- programs


def test_equations_run_on_operands_of_other_shapes():
    def function(x):
        return jax.jit(lambda y: jnp.maximum(y, 0) * y)(x) + x * 2, jax.nn.relu(x)

    jaxpr, constants = jax_internals.parts_of(jax.make_jaxpr(function)(jnp.ones((2, 3))))
    assert not constants, VERSION
    called = [jax_internals.called_by(eqn) for eqn in jaxpr.eqns]
    assert {eqn.primitive.name for eqn, inner in zip(jaxpr.eqns, called, strict=True) if inner} <= {
        *("jit", "pjit", "custom_jvp_call")
    }, VERSION
    assert sum(inner is not None for inner in called) == 2, VERSION
    product = next(eqn for eqn in jaxpr.eqns if eqn.primitive.name == "mul")
    x = jnp.arange(5.0)
    (found,) = jax_internals.run_equation(product, [x, x])  # one value twice
    assert (found == x * x).all(), VERSION


def test_types_of_shapes():
    def over(v, same):
        shape = jax_internals.shape_like((3,), v, same)
        jaxpr, _ = jax_internals.parts_of(jax.make_jaxpr(lambda w: w)(shape))
        return jax_internals.varying_of(jaxpr.invars[0].aval)

    assert inside(lambda v: over(v, ("x",))) == set(), VERSION
