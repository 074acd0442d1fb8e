"""Lists the benchmarks, or runs one: ``python -m experiments.benchmarks [NAME [ARGUMENTS]]``."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from experiments import benchmarks


def find() -> dict[str, str]:
    """Name of each benchmark, with the first line of its docstring.

    Sources are read, not imported: a list should not wait for the imports of the benchmarks.
    """
    found = {}
    for module in pkgutil.iter_modules(benchmarks.__path__):
        spec = importlib.util.find_spec(f"{benchmarks.__name__}.{module.name}")
        if module.name.startswith("_") or spec is None or spec.origin is None:
            continue
        with open(spec.origin, "rb") as source:
            tree = ast.parse(source.read(), spec.origin)
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[module.name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark ``argv[0]`` with the rest of ``argv``; lists all when there is none."""
    found = find()
    if not argv:
        table = Table("benchmark", "what it measures", box=None)
        for name, line in found.items():
            table.add_row(name, line)
        Console().print(table if found else "There are no benchmarks yet.")
        return 0
    name, rest = argv[0].replace("-", "_"), argv[1:]
    if name not in found:
        names = ", ".join(found) or "none yet"
        print(f"There is no benchmark {name!r}. The benchmarks are: {names}.", file=sys.stderr)
        return 2
    return importlib.import_module(f"{benchmarks.__name__}.{name}").main(rest) or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
