"""``python -m jaxcoll.tune``: tables of tuning on the command line.

::

    python -m jaxcoll.tune show TABLE
    python -m jaxcoll.tune diff BEFORE AFTER
    python -m jaxcoll.tune merge RESULT TABLE ...
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jaxcoll.tune.tables.table import Table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0, or 1 where ``diff`` finds a difference, or 2 after an error."""
    parser = argparse.ArgumentParser(prog="python -m jaxcoll.tune", description="Tables of tuning.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("show", help="print a table").add_argument("table")
    compared = commands.add_parser("diff", help="print what changes from a table to another")
    compared.add_argument("before")
    compared.add_argument("after")
    merged = commands.add_parser("merge", help="write what several tables hold to one file")
    merged.add_argument("result")
    merged.add_argument("tables", nargs="+")
    chosen = parser.parse_args(arguments)
    try:
        return _run(chosen)
    except (OSError, ValueError) as error:
        print(f"jaxcoll.tune: {error}", file=sys.stderr)
        return 2


def _run(chosen: argparse.Namespace) -> int:
    if chosen.command == "show":
        print(Table.load(chosen.table).show())
        return 0
    if chosen.command == "diff":
        difference = Table.load(chosen.before).diff(Table.load(chosen.after))
        print(difference, end="\n" if difference else "")
        return int(bool(difference))
    result = Table()
    for path in chosen.tables:
        result = result.merge(Table.load(path))
    result.save(chosen.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
