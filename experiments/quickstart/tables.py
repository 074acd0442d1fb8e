"""Tables of the quickstart, for the eye."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from experiments.quickstart.candidates import Candidate, best_at
from experiments.quickstart.numerics import NumericsCheck
from experiments.timing import format_seconds
from jaxcoll import Bound
from jaxcoll.draw import format_bytes

_STYLE: dict[str, Any] = {
    "box": box.SIMPLE_HEAD,
    "padding": 0,
    "show_edge": False,
    "title_justify": "left",
    "caption_justify": "left",
}


def times_table(found: Sequence[Candidate], sizes: Sequence[int], bounds: Sequence[Bound]) -> Table:
    """Steps, messages, and at each size the time and, below, the bound in percent of it."""
    best = [best_at(found, i) for i in range(len(sizes))]
    title = "Simulated time; below it, the percent of the bound that it reaches"
    table = Table(
        title=title,
        caption="* the best at this size; x2: two chunks per shard; auto: chosen by size",
        **_STYLE,
    )
    table.add_column("all_reduce", no_wrap=True)
    for name in ("steps", "messages", *map(format_bytes, sizes)):
        table.add_column(name, justify="right", no_wrap=True)
    for candidate in found:
        if not candidate.is_defined:
            continue
        cells = []
        for i, time in enumerate(candidate.times):
            text = f"{format_seconds(time)}\n{100 * bounds[i].time / time:.0f} %"
            wins = best[i] is candidate
            cells.append(Text(f"*{text}" if wins else text, style="bold green" if wins else ""))
        steps = _range([schedule.num_steps for schedule in candidate.schedules])
        messages = _range([schedule.num_messages for schedule in candidate.schedules])
        table.add_row(candidate.label, steps, messages, *cells)
    table.add_section()
    table.add_row("bound", "", "", *(format_seconds(bound.time) for bound in bounds), style="dim")
    return table


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}..{high}"


def undefined(found: Sequence[Candidate]) -> list[str]:
    """A line for each synthesizer that has no schedule for the network, with the reason."""
    return [
        f"{candidate.label} is not defined here: {candidate.reason}"
        for candidate in found
        if not candidate.is_defined
    ]


def numerics_table(checks: Mapping[str, NumericsCheck], elements: int) -> Table:
    """How the schedules' sums compare with ``lax.psum``'s."""
    table = Table(title=f"Run on devices beside lax.psum, {elements} elements a rank", **_STYLE)
    table.add_column("psum", no_wrap=True)
    table.add_column("int32")
    table.add_column("float32: largest difference / (n eps sum|x|)", justify="right")
    for label, check in checks.items():
        ints = "bitwise equal" if check.ints_equal else "differ"
        passes = "passes" if check.float_error <= 1.0 else "too much"
        table.add_row(label, ints, f"{check.float_error:.3f} of 1, {passes}")
    return table
