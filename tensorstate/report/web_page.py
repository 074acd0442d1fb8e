"""A plan as a web page: the graph layer by layer, every node coloured by its strategy.

The page is one file without scripts from elsewhere; names from the model are escaped.
"""

from __future__ import annotations

import colorsys
from html import escape

from tensorstate.cost.cost import SearchResult
from tensorstate.ir.graph import Node
from tensorstate.ir.placements import REPLICATED
from tensorstate.problem.problem import Problem
from tensorstate.problem.strategies import Strategy
from tensorstate.report.text import format_placements, size, summary

PHASES = ("forward", "backward", "optimizer")

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 72em; color: #222 }
pre { background: #f6f6f6; padding: 1em; overflow-x: auto }
table { border-collapse: collapse; width: 100% }
td, th { padding: .2em .6em; text-align: left; border-bottom: 1px solid #eee; font-size: 13px }
td.state { font-family: ui-monospace, monospace; white-space: nowrap }
.key span { display: inline-block; padding: .1em .6em; margin: .1em; border-radius: .3em }
"""


def page(
    problem: Problem, result: SearchResult, memory_limit: float | None, title: str = "Plan"
) -> str:
    """The page's HTML.

    Args:
        problem, result, memory_limit: as for ``report.summary``.
        title: of the page.
    """
    colours = _colour_of(problem, result)
    key = "".join(
        f'<span style="background:{colour}">{escape(text)}</span>'
        for text, colour in colours.items()
    )
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>",
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>",
        f"<pre>{escape(summary(problem, result, memory_limit))}</pre>",
        f"<p class=key>{key}</p>",
    ]
    parts += _table("Inputs", [_input_row(problem, result, g, colours) for g in _inputs(problem)])
    for phase in PHASES:
        groups = _in_phase(problem, phase)
        rows = [_row(problem, result, g, colours) for g in groups]
        parts += _table(f"{phase.capitalize()} pass" if phase != "optimizer" else "Optimizer", rows)
    return "\n".join([*parts, "</html>", ""])


def _table(title: str, rows: list[str]) -> list[str]:
    head = "<tr><th>operators</th><th>placements</th><th>work</th><th>where in the model</th></tr>"
    return [f"<h2>{escape(title)}</h2><table>{head}", *rows, "</table>"]


def _inputs(problem: Problem) -> list[int]:
    classes = range(len(problem.graph.node_classes))
    return [g for g in classes if problem.node(g).tensor is not None]


def _in_phase(problem: Problem, phase: str) -> list[int]:
    classes = range(len(problem.graph.node_classes))
    in_phase = [g for g in classes if problem.node(g).phase == phase]
    return sorted(in_phase, key=lambda g: problem.node(g).index)


def strategy_text(problem: Problem, strategy: Strategy) -> str:
    """A strategy in words, per mesh axis."""
    names = problem.mesh.names
    parts = []
    for name, placement in zip(names, strategy, strict=True):
        if placement >= 0:
            parts.append(f"{name}: sharded")
        elif placement < REPLICATED:
            parts.append(f"{name}: partial")
    return ", ".join(parts) or "replicated"


def _colour_of(problem: Problem, result: SearchResult) -> dict[str, str]:
    """A colour per kind of strategy, light enough for black letters."""
    texts = sorted({strategy_text(problem, strategy) for strategy in result.decisions.strategies})
    step = 1 / max(1, len(texts))
    found_colours = {}
    for i, text in enumerate(texts):
        red, green, blue = colorsys.hls_to_rgb(i * step, 0.86, 0.7)
        found_colours[text] = f"#{int(255 * red):02x}{int(255 * green):02x}{int(255 * blue):02x}"
    if "replicated" in found_colours:
        found_colours["replicated"] = "#eeeeee"
    return found_colours


def _input_row(
    problem: Problem, result: SearchResult, class_id: int, colours: dict[str, str]
) -> str:
    tensor = problem.traced.tensors[problem.node(class_id).tensor or 0]
    strategy = result.decisions.strategies[class_id]
    colour = colours[strategy_text(problem, strategy)]
    multiplicity = problem.multiplicity(class_id)
    name = tensor.name + (f" and {multiplicity - 1} like it" if multiplicity > 1 else "")
    placements = format_placements(problem, tensor, strategy)
    local = size(tensor.nbytes // problem.mesh.num_shards(strategy))
    return (
        f'<tr><td>{escape(name)}</td><td class=state style="background:{colour}">'
        f"{escape(placements)}</td><td>{local}</td><td>{escape(tensor.role)}</td></tr>"
    )


def _row(problem: Problem, result: SearchResult, class_id: int, colours: dict[str, str]) -> str:
    node, strategy = problem.node(class_id), result.decisions.strategies[class_id]
    colour = colours[strategy_text(problem, strategy)]
    operators = [problem.graph.operators[m.operator] for m in node.members]
    multiplicity = problem.multiplicity(class_id)
    times = f" x {multiplicity}" if multiplicity > 1 else ""
    if problem.num_repeats(class_id) > 1:
        times += f", in each of {problem.num_repeats(class_id)} microbatches"
    names = ", ".join(dict.fromkeys(operator.primitive for operator in operators))
    recomputed = sum(
        index in result.cost.recomputed_nodes for index in problem.graph.node_classes[class_id]
    )
    recomputed_nodes = f", {recomputed} recomputed" if recomputed else ""
    flops = sum(operator.flops for operator in operators) // problem.mesh.num_shards(strategy)
    work = (
        f"{flops:.3g} flop"
        if node.kind == "einsum"
        else size(problem.memory_traffic(class_id, strategy))
    )
    sharded = escape(_sharded_labels(problem, node, strategy))
    return (
        f"<tr><td>{escape(names + times + recomputed_nodes)}</td>"
        f'<td class=state style="background:{colour}">{sharded}</td>'
        f"<td>{work}</td><td>{escape(str(operators[0].source))}</td></tr>"
    )


def _sharded_labels(problem: Problem, node: Node, strategy: Strategy) -> str:
    """The label that each mesh axis shards, by its size."""
    parts = []
    for name, placement in zip(problem.mesh.names, strategy, strict=True):
        if placement >= 0:
            parts.append(f"{name} shards {node.sizes[placement]}")
        elif placement < REPLICATED:
            parts.append(f"partial over {name}")
    return ", ".join(parts) or "replicated"
