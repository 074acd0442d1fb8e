"""What commands print on stdout: lines, tables whose rows come as they are made, JSON."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any

import click

from jaxcoll.progress import wipe


class Group(click.Group):
    """Commands by name; a wrong name is told the nearest one."""

    def resolve_command(self, ctx: click.Context, args: list[str]):
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise click.UsageError(f"no command is called {args[0][:40]!r}; {meant}", ctx)
        return super().resolve_command(ctx, args)


class Table:
    """Rows that are printed as they come, in columns of fixed widths; the first is left-aligned."""

    def __init__(self, widths: Sequence[int]):
        self._widths = widths

    def row(self, *cells: str) -> None:
        first, *rest = cells
        wipe()
        padded = [cell.rjust(width) for cell, width in zip(rest, self._widths[1:], strict=False)]
        click.echo("  ".join([first.ljust(self._widths[0]), *padded]).rstrip())


def print_json(value: Any) -> None:
    """One document on stdout. Infinities and NaN, which JSON has not, are refused."""
    click.echo(json.dumps(value, indent=1, allow_nan=False))


def one_line(error: object) -> str:
    """An error's message without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
