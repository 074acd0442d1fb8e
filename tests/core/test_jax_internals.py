"""JAX's internals are what ``jaxcoll.jax_internals`` takes them for, a test for each name there.

Every test's own name says which JAX is installed, and on which the module was proved.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.experimental import io_callback
from jax.extend.core import ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jaxcoll import jax_internals
from jaxcoll.execute.layout import Axes
from tests.execute.harness import mesh_of
from tests.tensorstate.primitives import EXAMPLES

ROOT = Path(__file__).parents[2]
INSTALLED = f"jax {jax.__version__}, proved on {' and '.join(jax_internals.PROVED)}"


@pytest.fixture(autouse=True, params=[INSTALLED])
def installed(request):
    """The name of every test ends in the version."""


# ---------------------------------------------------------------------- the door

# What only the module may import, or name as a string for an import.
MODULES = r"jax\.(?:_src|lib|core|extend|interpreters)\b|jaxlib\b"
# Attributes that no page of JAX's shows, and where another class has one of that name.
ATTRIBUTES = {
    **dict.fromkeys(("mat", "vma", "manual_axis_type", "str_short", "strip_weak_type"), ""),
    **dict.fromkeys(("source_info", "name_stack", "debug_info", "jaxpr_effects"), ""),
    **dict.fromkeys(("in_avals", "out_avals", "to_lojax", "def_impl", "def_abstract_eval"), ""),
    "effects": "jaxcoll/tune/training_step/",  # of options on times, in the regression
}


def internals_of(tree: ast.AST, path: str, own: frozenset[str]) -> Iterator[tuple[int, str]]:
    """The lines of a file that name an internal, with the name.

    Args:
        own: the private names that the project defines; another one in a file that imports JAX is
            taken for JAX's.
    """
    uses_jax = any(
        isinstance(node, ast.Import | ast.ImportFrom) and re.search(r"\bjax\b", ast.unparse(node))
        for node in ast.walk(tree)
    )
    for node in ast.walk(tree):
        named = ""
        if isinstance(node, ast.Import):
            named = next((n.name for n in node.names if re.match(MODULES, n.name)), "")
        elif isinstance(node, ast.ImportFrom):
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            named = next((n for n in full if re.match(MODULES, n) or is_primitive(n)), "")
        elif isinstance(node, ast.Attribute):
            chain = dotted(node)
            beside = ATTRIBUTES.get(node.attr)
            private = node.attr.startswith("_") and not node.attr.startswith("__")
            if (
                (beside is not None and not (beside and path.startswith(beside)))
                or re.match(MODULES, chain)
                or is_primitive(chain)
                or (private and uses_jax and node.attr not in own)
            ):
                named = chain
        elif isinstance(node, ast.Call) and dotted(node.func) in ("getattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and name.value in ATTRIBUTES:
                named = ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # "jaxlib" alone is the name of a package that is installed or not.
            whole = re.fullmatch(rf"(?:{MODULES})(?:\.\w+)*", node.value)
            named = node.value if whole and node.value != "jaxlib" else ""
        if named:
            yield getattr(node, "lineno", 0), named


def dotted(node: ast.expr) -> str:
    """A chain of attributes as it is written; of one that starts with anything else its end."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_primitive(chain: str) -> bool:
    return re.search(r"\blax\.(?:\w+\.)*\w+_p$", chain) is not None


# Where a private name is defined: a function, a class, a variable or field, an attribute.
DEFINED = re.compile(r"\b(?:def |class |self\.)(_\w+)|(?<![\w.])(_\w+)(?=:? )")
# What a file without an internal need not have; the others are parsed.
SUSPECT = re.compile(rf"\bjax(?:lib)?\b|\b(?:{'|'.join(ATTRIBUTES)})\b")


@functools.cache
def sources() -> dict[str, str]:
    packages = ("jaxcoll", "tensorstate", "experiments")
    files = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}


def with_jax(line: str) -> ast.Module:
    return ast.parse(f"import jax\n{line}\n")


def test_no_other_file_names_internals():
    defined = (DEFINED.findall(code) for code in sources().values())
    own = {name for names in defined for pair in names for name in pair}
    own |= {"_replace", "_asdict", "_fields"}  # of named tuples
    suspect = {path: ast.parse(code) for path, code in sources().items() if SUSPECT.search(code)}
    found = {
        path: [f"line {line}: {named}" for line, named in internals_of(tree, path, frozenset(own))]
        for path, tree in suspect.items()
    }
    assert found.pop("jaxcoll/jax_internals.py")
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from jax._src import core",
        "from jax import core",
        "import jaxlib.xla_client",
        "from jax.extend.core import Literal",
        "from jax.lax import add_p",
        "isinstance(x, jax.core.Tracer)",
        "lax.add_p.bind(x, y)",
        "jax.lax.linalg.lu_p",
        "jax.typeof(x).mat",
        "eqn.source_info",
        "eqn.effects",
        "getattr(aval, 'mat', None)",
        "array._npy_value",
        "importlib.import_module('jax._src.core')",
    ],
)
def test_internals_are_found(line):
    assert [*internals_of(with_jax(line), "jaxcoll/tune/trial.py", frozenset({"_mine"}))]


@pytest.mark.parametrize(
    "line",
    [
        "from jax.experimental import pallas",
        "eqn.primitive.bind(*x, **eqn.params)",
        "effects = self.effects",
        "other._mine",
        "metadata.version('jaxlib')",
        "mlir_p = 1",
    ],
)
def test_what_is_documented_or_ours_is_not_found(line):
    own = frozenset({"_mine"})
    assert not [*internals_of(with_jax(line), "jaxcoll/tune/training_step/regression.py", own)]


def test_every_name_of_the_module_is_tested_here():
    names = set()
    for node in ast.parse(sources()["jaxcoll/jax_internals.py"]).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom):  # handed on: ``from m import x as x``
            names.update(alias.name for alias in node.names if alias.asname == alias.name)
    here = Path(__file__).read_text(encoding="utf-8")
    tested = set(re.findall(r"\bjax_internals\.(\w+)", here))
    types = {"Equation", "Shape"}  # of type hints
    assert {name for name in names if not name.startswith("_")} - types <= tested


@pytest.mark.parametrize(
    "context", [jax_internals.choices_context, jax_internals.network_context], ids=["c", "n"]
)
def test_programs_are_kept_per_context(context):
    traced = []
    program = jax.jit(lambda x: traced.append(context.value) or x)
    for value in (None, "one", None, "one"):
        with context(value):
            program(1)
    assert traced == [None, "one"]


# ---------------------------------------------------------------------- types and scopes


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
    assert inside(jax_internals.varying) == {"x"}
    assert inside(lambda v: jax_internals.varying(lax.psum(v, "x"))) == set()
    both = lambda v: jax_internals.varying(lax.pcast(v, "y", to="varying"))  # noqa: E731
    assert inside(both) == {"x", "y"}
    assert inside(jax_internals.unreduced) == set()


def test_whether_types_are_checked():
    assert inside(lambda v: jax_internals.checks_vma()) is True
    assert inside(lambda v: jax_internals.checks_vma(), check_vma=False) is False


def test_whether_operations_run_one_by_one():
    seen = []

    def body(v):
        seen.append(jax_internals.is_eager())
        jax.vmap(jax.grad(lambda u: (seen.append(jax_internals.is_eager()), u * u)[1]))(v)
        return v

    f = jax.shard_map(body, mesh=mesh_of(4), in_specs=P("x"), out_specs=P("x"))
    f(jnp.ones(4))
    jax.jit(f)(jnp.ones(4))
    assert seen == [True, True, False, False]


def test_axes_in_scope():
    sizes = inside(lambda v: jax_internals.axis_sizes())
    assert sizes == {"x": 2, "y": 4}
    assert jax_internals.axis_sizes() == {}
    assert inside(lambda v: jax_internals.mesh_axes()) == ("x", "y")
    assert inside(lambda v: jax_internals.mesh_axes(), axis_names={"x"}) == ("x",)
    assert inside(lambda v: jax_internals.mesh_size()) == 8


def test_axes_of_the_mesh_come_in_its_order():
    """Whatever mesh with axes of the same names and sizes the process has seen before."""
    orders, kept = [], []

    def body(v):
        def inner(u):
            orders.append(tuple(jax_internals.axis_sizes()))
            kept.append(jax_internals.core.get_axis_env())  # as JAX's caches do, now and then
            return u

        return jax.vmap(inner, axis_name="i")(v)

    for names in ("abcde", "cdeba"):
        mesh = Mesh(np.array(jax.devices()[:1]).reshape([1] * 5), tuple(names))
        f = jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P())
        jax.make_jaxpr(f)(jnp.ones(3))
    assert orders == [(*"abcde", "i"), (*"cdeba", "i")]


@pytest.mark.parametrize("manual", [{"x"}, {"y"}, {"x", "y"}])
def test_kinds_of_axes_in_scope(manual):
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Explicit))
    spec = P(None, "y")
    seen = {}

    def body(v):
        seen["fully"] = jax_internals.is_fully_manual()
        seen["auto"] = jax_internals.auto_sizes()
        seen["explicit"] = jax_internals.explicit_axes()
        seen["nestable"] = jax_internals.nestable_axes()
        seen["sharding"] = jax_internals.explicit_sharding(v)
        seen["ways"] = [jax_internals.ways(part) for part in (None, "y", ("x", "y"))]
        if manual == {"x"}:
            v = jax_internals.as_auto_axes(jnp.sin, P("y"))(v)
            seen["freed"] = jax_internals.explicit_sharding(v)
        return v

    specs = P(None, *("y" for _ in manual & {"y"}))
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=specs, axis_names=manual)
    jax.jit(mapped)(jax.device_put(jnp.zeros((8, 4)), jax.NamedSharding(mesh, spec)))
    assert seen["ways"] == [1, 4, 8]
    assert seen["fully"] == (manual == {"x", "y"})
    assert seen["auto"] == (() if "x" in manual else (2,))
    assert seen["explicit"] == {"y"} - manual
    assert seen["nestable"] == ({"y"} if manual == {"x"} else set())
    if manual == {"x"}:
        assert seen["sharding"] == (spec, {"y"})
        assert seen["freed"] == (P("y", None), {"y"})


def test_types_need_not_be_checked():
    def unchecked(v):
        with jax_internals.vma_unchecked():
            return jax_internals.checks_vma()

    assert inside(unchecked) is False


def test_devices_in_scope():
    assert jax_internals.platform() == "cpu"
    assert inside(lambda v: jax_internals.platform()) == "cpu"
    assert jax_internals.concrete_mesh() is None
    mesh = mesh_of(2, 4)
    with jax.set_mesh(mesh):
        assert jax_internals.concrete_mesh() == mesh


def test_what_runs_as_one_operation():
    seen = []

    def body(v):
        def operation(u):
            seen.append((type(u) is type(v), jax.config.jax_disable_jit))
            return u + 1

        return jax_internals.as_one_operation(operation, v)

    f = jax.shard_map(body, mesh=mesh_of(4), in_specs=P("x"), out_specs=P("x"))
    with jax.disable_jit():
        assert f(jnp.ones(4)).tolist() == [2.0] * 4
    jax.jit(f)(jnp.ones(4))
    assert seen == [(False, False), (True, False)]


def test_axes_that_shard_a_batch():
    def seen(v):
        found.append(jax_internals.batch_axes())
        return v

    found: list = []
    inside(jax.vmap(seen, spmd_axis_name="y"), axis_names={"x"})
    inside(jax.vmap(seen), axis_names={"x"})
    assert found == [{"y"}, set()]


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
    assert not seen
    with pytest.raises(ValueError, match="not yet"):
        program(x)
    assert program(x).tolist() == [1.0] * 4
    assert all("program" in name and items == [item] for name, items, _ in seen)
    assert len(seen) == 2
    assert set(seen[0][2]) == set(jax.devices()[:8])
    export.export(program)(x)  # which refuses programs that carry anything


def test_programs_are_seen_before_they_are_compiled():
    seen = []

    def change(module, devices):
        if "custom_call @probe" in str(module):
            blocks = jax_internals.calls_in(module, "probe")
            for calls in blocks:
                for call in calls:
                    jax_internals.set_call(call, {"number": 7, "devices": [3, 4]})
            seen.append((len(blocks), sum(map(len, blocks)), str(module), devices))

    def probe(x):
        types = jax.ShapeDtypeStruct(x.shape, x.dtype)
        call = jax.ffi.ffi_call("probe", types, has_side_effect=True)
        return call(x, number=np.int64(0), devices=np.zeros(0, np.int64))

    jax_internals.before_compiling(change)
    twice = jax.jit(probe)
    program = jax.jit(lambda x: probe(probe(x)) + twice(x) + twice(x + 1))
    with pytest.raises(Exception, match="probe"):  # nobody has registered such a call
        program(jnp.zeros(4))
    blocks, calls, text, devices = seen[0]
    # Two in the program, and one in each call of a function that is written once.
    assert (blocks, calls) == (3, 4)
    assert text.count("number = 7 : i64") == 4
    assert text.count("devices = array<i64: 3, 4>") == 4
    assert devices == [jax.devices()[0]]
    assert jax_internals.coordinator() is None  # of one process


PROCESS = """
    import socket

    import jax

    from jaxcoll import jax_internals

    try:
        jax_internals.publish("a/key", "value")
    except RuntimeError as error:
        print(error)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=1, process_id=0)
    jax_internals.publish("a/key", "first")
    jax_internals.publish("a/key", "second")
    print(jax_internals.fetch("a/key", 5), jax_internals.fetch("a/other", 0.01))
    jax_internals.discard("a/")
    print(jax_internals.fetch("a/key", 0.01))
"""


def run_alone(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)


def test_processes_publish_and_fetch():
    done = run_alone(PROCESS)
    assert done.returncode == 0, done.stderr
    refused, *rest = done.stdout.splitlines()
    assert "jax.distributed.initialize has not been called" in refused
    assert rest == ["second None", "None"]


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
    assert len(found) >= 8


def test_settings_of_a_thread_hold_in_another_one():
    mesh = mesh_of(8)
    found = []
    network, choices = jax_internals.network_context, jax_internals.choices_context
    with jax.enable_x64(True), jax.set_mesh(mesh), network("a ring"), choices("a table"):
        entered = jax_internals.thread_settings()

    def work():
        with entered():
            found.append((jnp.zeros(1, float).dtype, jax.sharding.get_mesh()))
            found.append((network.value, choices.value))
        found.append(jnp.zeros(1, float).dtype)
        found.append((network.value, choices.value))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(jnp.float64, mesh), ("a ring", "a table"), jnp.float32, (None, None)]


# ---------------------------------------------------------------------- faults of versions


def test_the_derivative_of_a_gather_whose_types_are_not_checked():
    def gathered(v):
        return (lax.all_gather(v, "x", to="invarying", tiled=True) * jnp.arange(4.0)).sum()[None]

    mapped = jax.shard_map(
        gathered, mesh=mesh_of(4), in_specs=P("x"), out_specs=P("x"), check_vma=False
    )
    found = jax.grad(lambda v: mapped(v).sum())(jnp.ones(4))
    from_each = 1 if jax_internals.INVARYING_UNCHECKED else 4  # rank
    assert found.tolist() == [from_each * k for k in range(4)]


def test_whether_operations_are_fused_across_barriers():
    def function(a, b, c):
        return lax.optimization_barrier(a * b) + c

    x = jnp.ones(64)
    compiled = str(jax.jit(function).lower(x, x, x).compile().as_text())
    bodies = [body for body in compiled.split("\n\n") if " multiply(" in body and " add(" in body]
    assert bool(bodies) == jax_internals.FUSES_ACROSS_BARRIERS


RESHARDING = """
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, Mesh
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(mesh, P("x", "y")))
    for spec in (P(None, None), P("y", None)):
        mapped = jax.shard_map(
            lambda v: jax.reshard(v, spec), mesh=mesh, in_specs=P("x"), out_specs=P("x"),
            axis_names={"x"},
        )
        assert float(jax.jit(mapped)(x).sum()) == 64
"""


@pytest.mark.skipif(jax_internals.RESHARD_ABORTS, reason="is not done there")
def test_resharding_between_explicit_axes_aborts_no_process():
    done = run_alone(RESHARDING)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------- programs


def jaxpr_of(function, *shapes):
    return jax_internals.parts_of(jax.make_jaxpr(function)(*shapes))


def test_jaxprs_have_what_the_pages_of_jax_show():
    captured = np.arange(3.0, dtype=np.float32)
    jaxpr, constants = jaxpr_of(lambda x: jnp.sin(x) * captured + 2.0, jnp.ones((3,)))
    assert (len(jaxpr.invars), len(jaxpr.outvars), len(jaxpr.eqns)) == (1, 1, 3)
    assert len(jaxpr.constvars) == len(constants) <= 1
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["sin", "mul", "add"]
    last = jaxpr.eqns[-1]
    assert last.outvars == jaxpr.outvars
    assert isinstance(last.invars[1], jax_internals.Literal)
    assert last.invars[1].val == 2.0
    aval = jaxpr.outvars[0].aval
    assert (aval.shape, aval.dtype, aval.ndim, aval.size) == ((3,), jnp.float32, 1, 3)
    assert aval.weak_type is False
    assert not last.primitive.multiple_results
    assert isinstance(last.primitive, jax_internals.Primitive)
    assert isinstance(last.params, dict)
    assert last.primitive.bind(jnp.ones(3), jnp.ones(3)).tolist() == [2.0] * 3
    assert hash(jax_internals.Primitive("one")) != hash(jax_internals.Primitive("one"))


def test_values_of_a_program_that_is_being_traced():
    seen = []
    jax.jit(lambda x: seen.append(isinstance(x, jax_internals.Tracer)) or x)(1.0)
    assert seen == [True]
    assert not isinstance(jnp.ones(1), jax_internals.Tracer)


def test_sizes_that_cannot_be_compared():
    (size,) = export.symbolic_shape("n")
    with pytest.raises(jax_internals.InconclusiveSize):
        bool(size >= 5)


def equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax_internals.inner_jaxprs(eqn):
            yield from equations(inner)


def values(shapes):
    return [
        jnp.asarray(np.random.default_rng(i).uniform(0.1, 1, shape.shape), shape.dtype)
        for i, shape in enumerate(shapes)
    ]


def solved(x, b):
    return lax.custom_linear_solve(lambda v: x * v, b, lambda _, b: b / x)


CALLS = {**EXAMPLES, "custom_linear_solve": (solved, *EXAMPLES["custom_linear_solve"][1:])}


@pytest.mark.parametrize("name", sorted(jax_internals.CALL_PRIMITIVES.keys() & CALLS.keys()))
def test_a_call_runs_its_program(name):
    """JAX runs an equation as it runs the program that is said to be in it."""
    function, *shapes = CALLS[name]
    jaxpr, _ = jaxpr_of(function, *shapes)
    eqn = next(eqn for eqn in equations(jaxpr) if eqn.primitive.name == name)
    inner = jax_internals.call_of(eqn)
    assert isinstance(inner, jax_internals.Inner)
    operands = values([atom.aval for atom in eqn.invars])
    program = ClosedJaxpr(inner.jaxpr, inner.constants)
    found = jax_internals.as_function(program)(*operands[inner.operands])
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6),
        found,
        jax_internals.run_equation(eqn, operands),
    )
    assert not inner.is_remat
    assert inner.name == ("sin" if name == "jit" else "")


def test_calls_of_this_jax_are_known_by_name():
    """A new name of ``jit`` or ``jax.checkpoint`` would be an operator on whole arrays."""
    for function in (jax.jit(jnp.sin), jax.checkpoint(jnp.sin), jax.nn.relu, jax.nn.silu):
        (eqn,) = jaxpr_of(function, jnp.ones(3))[0].eqns
        assert jax_internals.call_of(eqn) is not None, eqn.primitive.name
    backward, _ = jaxpr_of(jax.grad(jax.checkpoint(lambda x: jnp.sin(x).sum())), jnp.ones(3))
    found = [eqn for eqn in equations(backward) if eqn.primitive.name in jax_internals.CHECKPOINTS]
    assert [call and call.is_remat for call in map(jax_internals.call_of, found)] == [True]
    assert jax_internals.call_of(jaxpr_of(jnp.sin, 1.0)[0].eqns[0]) is None


def scanned(x):
    def body(carry, row):
        (total, last), scale = carry, x[0]
        return (total + row.sum(), last * scale), row * scale

    return lax.scan(body, (jnp.float32(0), x[1]), x, reverse=True)


def test_the_parts_of_a_scan():
    jaxpr, _ = jaxpr_of(scanned, jnp.ones((5, 4)))
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    loop = jax_internals.loop_of(eqn)
    assert isinstance(loop, jax_internals.Loop)
    assert (loop.num_consts, loop.num_carry, loop.length, loop.reverse) == (1, 2, 5, True)
    shapes = [atom.aval.shape for atom in loop.jaxpr.invars]
    assert shapes == [(5, 4), (), (4,), (4,)]  # a constant, the carry, a row


def test_the_parts_of_a_while_loop():
    def function(x, limit):
        return lax.while_loop(lambda c: c[0] < limit, lambda c: (c[0] + 1, c[1] * x), (0, x))

    jaxpr, _ = jaxpr_of(function, jnp.ones(3), 7)
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "while"]
    loop = jax_internals.while_of(eqn)
    assert isinstance(loop, jax_internals.While)
    assert (loop.num_condition_consts, loop.num_body_consts) == (1, 1)
    assert [len(jaxpr.invars) for jaxpr, _ in (loop.condition, loop.body)] == [3, 3]
    assert len(loop.body[0].outvars) == 2


@pytest.mark.parametrize("name", ["scan", "while", "cond"])
def test_bodies_of_loops_are_replaced(name):
    function, *shapes = EXAMPLES[name]
    jaxpr, _ = jaxpr_of(function, *shapes)
    eqn = next(eqn for eqn in equations(jaxpr) if eqn.primitive.name == name)
    calls = []

    def replace(closed):
        calls.append(closed)
        return jax_internals.as_function(closed)

    made = jax_internals.with_bodies(eqn, replace)
    assert len(calls) == {"scan": 1, "while": 2, "cond": 2}[name]
    operands = values([atom.aval for atom in eqn.invars])
    found, expected = (jax_internals.run_equation(e, operands) for e in (made, eqn))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_the_first_equation_inside_another():
    jaxpr, _ = jaxpr_of(jax.jit(lambda x: lax.map(jnp.sin, x) + 1), jnp.ones(3))
    (call,) = jaxpr.eqns
    assert jax_internals.first_inside(call, {"jit"}) is call
    assert jax_internals.first_inside(call, {"sin"}).primitive.name == "sin"
    assert jax_internals.first_inside(call, {"cos"}) is None


def test_equations_run_on_operands_of_other_shapes():
    x = jnp.arange(5.0)
    (product,) = jaxpr_of(lambda v: v * v, jnp.ones((2, 3)))[0].eqns
    (found,) = jax_internals.run_equation(product, [x, x])  # one value twice
    assert (found == x * x).all()
    (scaled,) = jaxpr_of(lambda v: v * 2, jnp.ones((2, 3)))[0].eqns
    (found,) = jax_internals.run_equation(scaled, [x, scaled.invars[1].val])  # a literal
    assert (found == x * 2).all()
    (total,) = jaxpr_of(lambda v: v.sum(1), jnp.ones((2, 3)))[0].eqns
    (found,) = jax_internals.run_equation(total, [x], axes=(0,))
    assert found == 10


def test_side_effects_of_equations():
    def printing(x):
        jax.debug.print("{}", x)
        return io_callback(lambda v: v, x, x)

    printed, called = jaxpr_of(printing, jnp.ones(3))[0].eqns
    assert jax_internals.effects_of(printed) == ["Debug"]
    assert jax_internals.effects_of(called) == ["IO"]
    assert jax_internals.effects_of(jaxpr_of(jnp.sin, 1.0)[0].eqns[0]) == []


def test_lines_and_scopes_of_equations():
    def function(x):
        with jax.named_scope("outer"):
            return jnp.sin(x) * 2

    first, second = jaxpr_of(function, 1.0)[0].eqns
    line = function.__code__.co_firstlineno + 2
    where = f"{__file__}:{line}"
    assert jax_internals.line_of(jax_internals.source_of(first)).startswith(where)
    assert str(jax_internals.name_stack_of(first)) == "outer"
    assert jax_internals.name_stack_of(first) is jax_internals.name_stack_of(second)
    backward, _ = jaxpr_of(jax.grad(lambda x: jnp.sin(x) ** 2), 1.0)
    stacks = [str(jax_internals.name_stack_of(eqn)) for eqn in backward.eqns]
    assert any("transpose(" in stack for stack in stacks)
    assert jax_internals.line_of(None) == ""


def test_lines_in_libraries_are_those_that_call_them():
    nn, optax = pytest.importorskip("flax.linen"), pytest.importorskip("optax")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(x)

    model, optimizer = Model(), optax.adam(0.1)
    params = model.init(jax.random.key(0), jnp.ones((2, 4)))

    def function(params, state, x):
        gradients = jax.grad(lambda p: model.apply(p, x).sum())(params)
        return optimizer.update(gradients, state, params)

    jaxpr, _ = jaxpr_of(function, params, optimizer.init(params), jnp.ones((2, 4)))
    lines = {jax_internals.line_of(jax_internals.source_of(eqn)) for eqn in jaxpr.eqns}
    assert {line.partition(":")[0] for line in lines if line} == {__file__}


# ---------------------------------------------------------------------- equations and primitives

X = jnp.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("equation", "operands", "expected"),
    [
        (jax_internals.transposing([1, 0]), [X], X.T),
        (jax_internals.reshaping([2, 6]), [X], X.reshape(2, 6)),
        (jax_internals.slicing([1, 0], [3, 2]), [X], X[1:3, :2]),
        (jax_internals.squeezing(0), [X[:1]], X[0]),
        (jax_internals.broadcasting([3, 2, 4], [0, 2]), [X], X[:, None].repeat(2, 1)),
        (jax_internals.concatenating(1), [X, X], jnp.hstack([X, X])),
        (jax_internals.selecting(), [X > 5, X, -X], jnp.where(X > 5, -X, X)),
    ],
)
def test_equations_that_are_written_down(equation, operands, expected):
    primitive, params = equation
    np.testing.assert_array_equal(primitive.bind(*operands, **params), expected)


def test_what_asks_for_a_sharding():
    mesh = mesh_of(8)

    def constrained(x):
        return lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, P("x")))

    (eqn,) = jaxpr_of(constrained, jnp.ones(8))[0].eqns
    assert eqn.primitive is jax_internals.SHARDING_CONSTRAINT


def test_random_bits_are_hashed_by_threefry():
    key = jax.random.key(3, impl="threefry2x32")
    count = jnp.arange(5, dtype=jnp.uint32)
    words = jnp.broadcast_arrays(*jax.random.key_data(key), 0 * count, count)
    high, low = jax_internals.threefry(*words)
    with jax.threefry_partitionable(True):
        assert ((high ^ low) == jax.random.bits(key, (5,))).all()


def test_a_function_as_a_primitive():
    doubled = jax_internals.define_function(
        "doubled",
        lambda x, *, times: [x * times, x + times],
        lambda x, *, times: [jax.ShapeDtypeStruct(x.shape, x.dtype)] * 2,
        lambda operands, dims, *, times: (doubled.bind(*operands, times=times), dims * 2),
    )
    x = jnp.arange(6.0).reshape(2, 3)
    for function in (lambda f: f, jax.jit, jax.vmap):
        found = function(lambda v: doubled.bind(v, times=3))(x)
        assert (found[0] == 3 * x).all()
        assert (found[1] == x + 3).all()
    run = jax_internals.decomposition(doubled)
    assert run is not None
    assert (run(x, times=3)[0] == 3 * x).all()
    assert doubled in jax_internals.registered()


def test_a_linear_primitive_has_a_transpose_of_its_own():
    def run(x, n, *, rows, axis_name):
        return n * jax.lax.psum(jnp.pad(x, (0, rows - len(x))), axis_name)

    def transpose(cotangent, n, *, rows, axis_name):
        return 10 * n * cotangent[: rows - 1]  # not that of ``run``

    padded = jax_internals.define_linear("padded", run, transpose, "rows")

    def call(x):
        return padded.bind(x, jnp.int32(2), rows=4, axis_name=("x",))

    def inside(function):
        spec = P("x")
        mesh = mesh_of(1)
        return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)

    x = jnp.arange(3.0)
    value, tangent = inside(lambda x: jnp.stack(jax.jvp(call, (x,), (x,))))(x)
    assert value.tolist() == tangent.tolist() == [0, 2, 4, 0]
    back = inside(jax.grad(lambda x: call(x).sum()))
    assert back(x).tolist() == [20, 20, 20]
    assert inside(jax.vmap(call))(jnp.stack([x, x])).tolist() == [[0, 2, 4, 0]] * 2


def test_registries_of_rules():
    primitives = {primitive.name: primitive for primitive in jax_internals.registered()}
    assert {"add", "dot_general", "sin", "scan", "sort", "igamma"} <= primitives.keys()
    assert jax_internals.broadcasts(primitives["add"])
    assert jax_internals.broadcasts(primitives["sin"])
    assert not jax_internals.broadcasts(primitives["dot_general"])
    assert jax_internals.decomposition(primitives["add"]) is None
    assert jax_internals.decomposition(primitives["lu"]) is None  # by LAPACK on CPU
    by_hand = jax_internals.decomposition(primitives["igamma"])
    assert by_hand is not None
    np.testing.assert_allclose(by_hand(X, X + 1)[0], lax.igamma(X, X + 1), rtol=1e-6)


def test_types_of_shapes():
    def over(v, same):
        shape = jax_internals.shape_like((3,), v, same)
        jaxpr, _ = jax_internals.parts_of(jax.make_jaxpr(lambda w: w)(shape))
        return jax_internals.varying_of(jaxpr.invars[0].aval)

    assert inside(lambda v: over(v, ("x",))) == set()
