"""Scores a folder of schedules: ``python -m experiments.collbench FOLDER [--size ci] [--json]``.

With ``--networks`` the networks are written to the folder instead, for synthesizers that are not
ours: ``jaxcoll convert`` writes them in other formats.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiments.collbench.problems import NETWORKS, network
from experiments.collbench.scores import beside, known, scores, summary
from experiments.config import SIZES
from experiments.study import ConfigError, print_table, printed
from jaxcoll import io


def main(argv: Sequence[str]) -> int:
    """Prints the scores; returns 0, 1 where a file has none, and 2 for a bad call."""
    parser = argparse.ArgumentParser(prog="python -m experiments.collbench", description=__doc__)
    parser.add_argument("folder", type=Path, help="of .xml and .json files, a schedule each")
    parser.add_argument("--size", choices=SIZES, default=SIZES[0], help="of the recorded study")
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    parser.add_argument("--networks", action="store_true", help="write the networks there instead")
    options = parser.parse_args(argv)
    if options.networks:
        options.folder.mkdir(parents=True, exist_ok=True)
        for name in NETWORKS:
            io.save(options.folder / f"{name}.json", network(name))
        print(f"{len(NETWORKS)} networks written to {options.folder}")
        return 0
    try:
        best = known(options.size)
        found = beside(scores(options.folder), best)
        rows = list(found if options.json else printed(found))
    except ConfigError as error:
        print(f"collbench: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"rows": rows, "summary": summary(rows, best)}, indent=1))
    else:
        print_table("Scores", rows, Console(width=None if sys.stdout.isatty() else 160))
        print("\n".join(summary(rows, best)))
    return int(any(row["refused"] is not None for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
