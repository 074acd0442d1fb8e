"""Pages of the site that are made from the code: synthesizers, commands, and the API."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import click

from jaxcoll.cli import COMMANDS, application
from jaxcoll.kinds import KINDS
from jaxcoll.synth import REGISTRY, SYNTHESIZERS

# Modules whose ``__all__`` is public, with a line for the list of them.
MODULES = {
    "jaxcoll": "networks, collectives, schedules, proofs, times, and the functions of jax.lax",
    "jaxcoll.errors": "errors, all of them a JaxcollError, and warnings",
    "jaxcoll.topologies": "families of networks",
    "jaxcoll.topologies.generative": "direct-connect families, and expansions of them",
    "jaxcoll.synth": "synthesizers",
    "jaxcoll.synth.direct_connect": "breadth-first schedules and their costs",
    "jaxcoll.bounds": "least times and costs, cuts, and the bottleneck",
    "jaxcoll.bounds.all_reduce": "the bound of an all_reduce by a linear program",
    "jaxcoll.simulation": "traffic, packets, collectives in switches, orders of sums",
    "jaxcoll.comparison": "the rows of compare",
    "jaxcoll.calibration": "what measured times say of links",
    "jaxcoll.measured": "published times of real machines",
    "jaxcoll.contest": "schedules beside a machine's own collectives",
    "jaxcoll.expectation": "the rows of expect",
    "jaxcoll.validation": "measured times predicted by others, and the errors",
    "jaxcoll.schedule": "schedules joined, and where they come from",
    "jaxcoll.compact": "schedules on disk",
    "jaxcoll.orbits": "schedules of thousands of ranks",
    "jaxcoll.trees": "forests of weighted trees",
    "jaxcoll.paths": "connections over paths of links",
    "jaxcoll.grid": "grids of ranks, and boxes of them",
    "jaxcoll.links.capable_switches": "switches that copy and add",
    "jaxcoll.mesh": "ranks and groups along the axes of a mesh",
    "jaxcoll.execute": "the functions of jax.lax, and the choice for a call",
    "jaxcoll.execute.wires": "values in fewer bytes on their way",
    "jaxcoll.io": "files",
    "jaxcoll.io.msccl": "programs of MSCCL",
    "jaxcoll.prove": "the second opinion on files",
    "jaxcoll.draw": "drawings",
    "jaxcoll.pages": "interactive pages",
    "jaxcoll.finder": "the search for networks of a size and degree",
    "jaxcoll.tune": "tuning by measured times",
    "jaxcoll.configurations": "tasks, and the configurations that they can be run by",
    "jaxcoll.emulation": "a cluster on one machine",
    "jaxcoll.executors": "independent work on several processes or machines",
    "jaxcoll.progress": "what progress= is called with",
    "jaxcoll.aot": "compiling for machines that are not here",
    "jaxcoll.training.transforms": "transforms of gradients, as jc.optax",
    "tensorstate": "plans of training steps",
}


def write_pages(folder: Path) -> None:
    """Write all pages; a file whose text stays is left alone, so that Sphinx need not read it."""
    pages = {
        "synthesizers.md": _synthesizer_list(),
        "commands.md": _commands(),
        "api.md": _api_list(),
        **{f"synthesizers/{name}.md": _synthesizer(name) for name in SYNTHESIZERS},
    }
    described: dict[int, str] = {}
    for name in MODULES:
        pages[f"api/{name}.md"] = _module(name, described)
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def write_live_pages(folder: Path) -> None:
    """An interactive page of a schedule and one of a plan, as examples."""
    import jax
    import jax.numpy as jnp

    import jaxcoll as jc
    import tensorstate

    def step(params, x):
        def loss(params):
            return jnp.mean((jax.nn.relu(x @ params["up"]) @ params["down"]) ** 2)

        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, jax.grad(loss)(params))

    shapes = {"up": (1024, 4096), "down": (4096, 1024)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    x, torus = jax.ShapeDtypeStruct((2048, 1024), jnp.float32), jc.topologies.torus(2, 4)
    plan = tensorstate.search(
        step, (params, x), mesh={"data": 2, "model": 4}, topology=torus, hardware="A100"
    )
    folder.mkdir(parents=True, exist_ok=True)
    schedule = jc.synthesize(torus, "all_reduce", "tacos", chunks=3)
    pages = {
        "schedule-page.html": jc.pages.schedule(schedule, 1e6),
        "plan-page.html": plan.html("A network of two layers"),
    }
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


def _tree(entries: list[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", "", *entries, "```", ""])


def _first_line(documented: Any) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0].replace("``", "`")


def _synthesizer_list() -> str:
    rows = [
        f"| [{name}](synthesizers/{name}.md) | {_first_line(made)} | {_kinds(name)} |"
        for name, made in SYNTHESIZERS.items()
    ]
    head = [
        "# Synthesizers",
        "",
        "By `auto`, all that apply are tried and the fastest is kept.",
        "",
    ]
    table = ["| name | what it does | collectives |", "|---|---|---|", *rows, ""]
    return "\n".join([*head, *table, _tree([f"synthesizers/{name}" for name in SYNTHESIZERS])])


def _kinds(name: str) -> str:
    """The collectives of a synthesizer: those it solves, and those that follow."""
    made = SYNTHESIZERS[name]()
    return ", ".join(kind.name for kind in KINDS.values() if made.makes(kind))


def _synthesizer(name: str) -> str:
    made = SYNTHESIZERS[name]
    module = inspect.getdoc(inspect.getmodule(made)) or ""
    tried = name in REGISTRY and bool(REGISTRY[name].variants())
    use = "`auto` tries it." if tried or name == "auto" else "By name only: `auto` leaves it out."
    lines = [
        f"# {name}",
        "",
        f"Collectives: {_kinds(name)}. {use}",
        "",
        "```python",
        f'jc.synthesize(topology, "{_example_kind(name)}", "{name}")',
        "```",
        "",
        "## The idea",
        "",
        "```{eval-rst}",
        module,
        "```",
        "",
        "## Guarantee, options and source",
        "",
        "```{eval-rst}",
        f".. autoclass:: {made.__module__}.{made.__qualname__}",
        "   :no-index:",
        "```",
        "",
    ]
    return "\n".join(lines)


def _example_kind(name: str) -> str:
    kinds = getattr(SYNTHESIZERS[name](), "kinds", ()) or ("all_reduce",)
    return "all_reduce" if "all_reduce" in kinds else sorted(kinds)[0]


def _commands() -> str:
    lines = ["# Commands", "", "```text", _help("jaxcoll", application), "```", ""]
    for name in COMMANDS:
        command = application.get_command(click.Context(application), name)
        if command is None:
            continue
        lines += [f"## {name}", "", "```text", _help(f"jaxcoll {name}", command), "```", ""]
        for inner, each in getattr(command, "commands", {}).items():
            text = _help(f"jaxcoll {name} {inner}", each)
            lines += [f"### {name} {inner}", "", "```text", text, "```", ""]
    return "\n".join(lines)


def _help(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path, max_content_width=100, terminal_width=100)
    return command.get_help(context)


def _api_list() -> str:
    rows = [f"- [`{name}`](api/{name}.md): {line}" for name, line in MODULES.items()]
    head = [
        "# API",
        "",
        "What most programs need is in `jaxcoll` itself, and the rest in the modules below: after",
        "`import jaxcoll as jc` as `jc.bounds.optimum`, or `from jaxcoll.bounds import optimum`.",
        "",
    ]
    return "\n".join([*head, *rows, "", _tree([f"api/{name}" for name in MODULES])])


def _module(name: str, described: dict[int, str]) -> str:
    """The names of a module; ``described`` says under which name an object stands already."""
    module = importlib.import_module(name)
    lines = [f"# {name}", "", "```{eval-rst}", inspect.getdoc(module) or "", "```", ""]
    for member in getattr(module, "__all__", _own_names(module)):
        found = getattr(module, member)
        kind = "autoclass" if inspect.isclass(found) else "autofunction"
        if inspect.ismodule(found) or not callable(found):
            continue
        if id(found) in described:
            lines += [f"`{name}.{member}` is `{described[id(found)]}`.", ""]
            continue
        described[id(found)] = f"{name}.{member}"
        lines += ["```{eval-rst}", f".. {kind}:: {name}.{member}"]
        if kind == "autoclass":
            lines.append("   :members:")
        lines += ["```", ""]
    return "\n".join(lines)


def _own_names(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
