"""Lists the benchmarks, or runs one: ``python -m experiments.benchmarks [NAME [ARGUMENTS]]``.

A benchmark is a public function of one argument, ``argv``: ``main`` is called like its file (or the
folder that its file begins), any other by its own name. Its first line, for ``main`` that of its
file, says what it measures.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments import benchmarks

# Ends with its exit status, or None for 0.
Benchmark = Callable[[Sequence[str]], int | None]

BEGINS = "__init__.py"  # the file that a folder begins with


def find() -> dict[str, str]:
    """Name of each benchmark, with the first line of its docstring.

    Sources are read, not imported: a list should not wait for the imports of the benchmarks.
    """
    found = {}
    for path, tree, function in _functions():
        says = tree if function.name == "main" else function
        found[_name(path, function)] = (ast.get_docstring(says) or "").partition("\n")[0]
    return dict(sorted(found.items()))


def _functions() -> Iterator[tuple[Path, ast.Module, ast.FunctionDef]]:
    """The path of each benchmark, in the folder of all of them, its module and its function."""
    for folder in map(Path, benchmarks.__path__):
        for path in folder.rglob("*.py"):
            if path.name.startswith("_") and path.name != BEGINS:
                continue
            tree = ast.parse((folder / path).read_bytes(), str(path))
            for node in tree.body:
                if isinstance(node, ast.FunctionDef) and _is_benchmark(node):
                    yield path.relative_to(folder), tree, node


def _is_benchmark(function: ast.FunctionDef) -> bool:
    arguments = [argument.arg for argument in function.args.args]
    return arguments == ["argv"] and not function.name.startswith("_")


def _name(path: Path, function: ast.FunctionDef) -> str:
    return _module(path)[-1] if function.name == "main" else function.name


def _module(path: Path) -> tuple[str, ...]:
    """The names of folders and module, from the folder of all benchmarks on."""
    return path.parent.parts if path.name == BEGINS else path.with_suffix("").parts


def load(name: str) -> Benchmark:
    """The function of a benchmark that ``find`` lists."""
    path, function = next(
        (path, function.name) for path, _, function in _functions() if _name(path, function) == name
    )
    module = ".".join([benchmarks.__name__, *_module(path)])
    return getattr(importlib.import_module(module), function)


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
    return load(name)(rest) or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
