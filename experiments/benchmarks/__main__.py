"""Lists the benchmarks, or runs one: ``python -m experiments.benchmarks [NAME [ARGUMENTS]]``."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.table import Table

from experiments import benchmarks


def find() -> dict[str, str]:
    """Name of each benchmark, with the first line of its docstring.

    Sources are read, not imported: a list should not wait for the imports of the benchmarks.
    """
    found = {}
    for folder, path in _sources():
        tree = ast.parse((folder / path).read_bytes(), str(path))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return dict(sorted(found.items()))


def _sources() -> Iterator[tuple[Path, Path]]:
    """The folder of the benchmarks, and the path in it of each module and each folder's modules."""
    for folder in map(Path, benchmarks.__path__):
        for path in folder.rglob("*.py"):
            if not path.name.startswith("_"):
                yield folder, path.relative_to(folder)


def load(name: str) -> ModuleType:
    """The module of a benchmark that ``find`` lists."""
    path = next(path for _, path in _sources() if path.stem == name)
    return importlib.import_module(".".join([benchmarks.__name__, *path.with_suffix("").parts]))


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
    return load(name).main(rest) or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
