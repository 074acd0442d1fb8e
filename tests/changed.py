"""The tests of what changed, found through imports: ``scripts/test --changed``.

A file depends on the modules that it imports, anywhere in it, and on what these import. The files
of tests that so depend on a changed file are printed, those of fewest imports in between first.
Followed are

- names, not packages: ``from jaxcoll.synth import Tacos`` leads to the module of Tacos, and
  ``jc.simulate`` to that of ``simulate``, though both packages import many others;
- modules named in strings, which ``importlib`` loads, and code in strings, which tests run in
  other processes;
- files that are named in strings: data, pages, configurations.

Not followed is the way from a list of plugins to its members (``LISTS``): whoever asks for the
fastest schedule would else depend on every synthesizer. A member is tested by the tests that name
it, and by those of the list itself, which try all members.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("jaxcoll", "tensorstate", "experiments", "tests", "docs", "packaging")

# Modules that list others so that nobody else has to name them. Tests that import a list directly
# depend on its members; whatever else asks the list depends on the list alone.
LISTS = frozenset({
    "jaxcoll.synth.registry",
    "jaxcoll.cli",
    "jaxcoll.io",
    "tensorstate.rules",
    "experiments.config",
    "experiments.page_tables",
    "experiments.recording",
})  # fmt: skip
# Tests that read whole folders, by where their files begin.
READERS = {
    "docs/": ("tests/test_docs.py", "tests/test_site.py", "tests/claims"),
    "README.md": ("tests/test_readme.py", "tests/test_docs.py", "tests/claims"),
    "CONTRIBUTING.md": ("tests/test_docs.py",),
    "CHANGELOG.md": ("tests/test_packaging.py",),
    "CITATION.cff": ("tests/test_packaging.py",),
    "packaging/": ("tests/test_packaging.py",),
    "setup.cfg": ("tests/test_packaging.py",),
    "pyproject.toml": ("tests/test_packaging.py",),
    "scripts/": ("tests/test_scripts.py", "tests/test_house.py"),
    "configs/": ("tests/experiments/recording", "tests/experiments/test_config.py"),
    "tests/conftest.py": ("tests",),
}
# Of any change of Python: the house rules, which take seconds.
ALWAYS = ("tests/test_house.py", "tests/test_sizes.py", "tests/core/test_lists.py")


def changed(against: str) -> list[str]:
    """Paths that differ from where this branch left another, and files that git does not know.

    Raises:
        SystemExit: there is no such branch.
    """
    base = _git("merge-base", "HEAD", against)
    if base is None:
        sys.exit(f"--changed compares with the branch {against}, which git does not know; "
                 "give another: --changed=BRANCH")  # fmt: skip
    found = [_git("diff", "--name-only", base), _git("ls-files", "-o", "--exclude-standard")]
    return sorted({path for text in found if text for path in text.splitlines()})


def _git(*arguments: str) -> str | None:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


# ---------------------------------------------------------------------- modules


class Read(NamedTuple):
    """What one file says, from one walk through it.

    Attributes:
        aliases: by the names that it gives modules, in all its imports, their own names.
        imported: pairs of a module and a name that is imported from it, "" for the module alone.
        chains: attributes of names, as ``("jc", "synth", "Tacos")``.
        texts: its strings.
        defines: whether it has functions or classes.
    """

    aliases: dict[str, str]
    imported: list[tuple[str, str, str]]
    chains: set[tuple[str, ...]]
    texts: list[str]
    defines: bool


def read(code: str) -> Read:
    """The imports, names and strings of a file, but for those that only type checkers read."""
    tree = ast.parse(code)
    defines = any(isinstance(n, ast.FunctionDef | ast.ClassDef) for n in tree.body)
    found = Read({}, [], set(), [], defines)
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                own = alias.name if alias.asname else alias.name.partition(".")[0]
                found.aliases[alias.asname or own] = own
                found.imported.append((alias.name, "", ""))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found.imported.append((node.module, alias.name, alias.asname or alias.name))
                found.aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute):
            if chain := _dotted(node):
                found.chains.add(chain)
                continue  # the attributes within are its beginning
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                found.texts.append(node.value)
            continue
        stack.extend(ast.iter_child_nodes(node))
    return found


def _dotted(node: ast.AST) -> tuple[str, ...]:
    """``a.b.c`` as its names; nothing for other expressions."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


class Sources:
    """The Python files of a tree by module name, and what each depends on."""

    def __init__(self, root: Path):
        self.root = root
        paths = [path for folder in FOLDERS for path in (root / folder).rglob("*.py")]
        self.paths = {_module_name(path.relative_to(root)): path for path in paths}
        self._reads: dict[str, Read] = {}
        self._exports: dict[str, dict[str, str]] = {}
        self._importers: dict[str, set[str]] = {}

    def read(self, module: str) -> Read:
        if module not in self._reads:
            self._reads[module] = read(self.paths[module].read_text(encoding="utf-8"))
        return self._reads[module]

    def is_package(self, module: str) -> bool:
        return self.paths[module].name == "__init__.py"

    def exports(self, package: str) -> dict[str, str]:
        """Of the names that a package imports, or loads lazily, the modules they come from."""
        if package not in self._exports:
            found = {
                known: inner if (inner := f"{module}.{name}") in self.paths else module
                for module, name, known in self.read(package).imported
                if known
            }
            self._exports[package] = found | (self._lazy_names() if package == "jaxcoll" else {})
        return self._exports[package]

    def _lazy_names(self) -> dict[str, str]:
        """The tables of ``jaxcoll/__init__.py``, by which it loads its names."""
        found = {"optax": "jaxcoll.training.transforms"}
        for node in ast.parse(self.paths["jaxcoll"].read_bytes()).body:
            if isinstance(node, ast.Assign) and _dotted_or_name(node.targets[0]) in _TABLES:
                for module, names in ast.literal_eval(node.value).items():
                    found |= dict.fromkeys(names, f"jaxcoll.{module}")
        return found

    def resolve(self, module: str, names: Sequence[str]) -> Iterator[str]:
        """The modules on the way to ``module.name.name``: each package on it, and where it ends."""
        seen = set()
        while names and module not in self.paths and f"{module}.{names[0]}" in self.paths:
            module, names = f"{module}.{names[0]}", names[1:]  # a folder without a file of its own
        while module in self.paths and module not in seen:
            seen.add(module)
            yield module
            if not names:
                return
            inner = f"{module}.{names[0]}"
            if inner in self.paths:
                module, names = inner, names[1:]
            elif self.is_package(module) and names[0] in self.exports(module):
                source = self.exports(module)[names[0]]
                # A module under its own name is passed; any other name is sought in its source.
                names = names[1:] if source.endswith(f".{names[0]}") else names
                module = source
            else:
                return

    def imports(self, module: str) -> set[str]:
        """The modules that a file depends on directly."""
        found = set(self._imports(self.read(module)))
        # The fixtures of a conftest are for the tests of its folder. The conftest of all tests has
        # no fixtures, and its imports are for one platform's tests, so it is not followed.
        folders = module.split(".")[:-1]
        conftests = (".".join([*folders[:n], "conftest"]) for n in range(2, len(folders) + 1))
        found |= {name for name in conftests if name in self.paths}
        return found - {module}

    def _imports(self, said: Read) -> Iterator[str]:
        for module, name, _ in said.imported:
            yield from self.resolve(module, (name,) if name else ())
        for chain in said.chains:
            if chain[0] in said.aliases:
                first, *rest = said.aliases[chain[0]].split(".")
                yield from self.resolve(first, (*rest, *chain[1:]))
        for text in said.texts:
            if "." in text and text in self.paths:
                yield text
            elif _CODE.search(text):
                yield from self._imports_of_code(text)

    def _imports_of_code(self, text: str) -> Iterator[str]:
        try:
            yield from self._imports(read(text))
        except SyntaxError:  # prose, or a template
            for name in _CODE.findall(text):
                yield from self.resolve(name, ())

    def importers(self) -> Mapping[str, set[str]]:
        """By module the files that depend on it directly."""
        if not self._importers:
            for module in self.paths:
                for each in self.imports(module):
                    self._importers.setdefault(each, set()).add(module)
        return self._importers

    def naming(self, path: str) -> set[str]:
        """The modules that name a file which is not Python."""
        # A script's own name is a word of the language, as `release` is.
        name = Path(path).name if Path(path).suffix else path
        return {module for module, file in self.paths.items() if name in file.read_text("utf-8")}


_TABLES = ("_NAMES", "_MOVED")
_CODE = re.compile(r"\b(?:import|from) ((?:jaxcoll|tensorstate|experiments|tests)\b[\w.]*)")


def _dotted_or_name(node: ast.AST) -> str:
    return ".".join(_dotted(node))


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# ---------------------------------------------------------------------- tests


def chosen_tests(paths: Sequence[str], root: Path) -> tuple[list[str], list[str]]:
    """The files of tests that depend on some files, the nearest first, and the files without any.

    Args:
        paths: changed files, from the root.
    """
    sources = Sources(root)
    by_path = {str(path.relative_to(root)): module for module, path in sources.paths.items()}
    distance: dict[str, int] = {}
    readers: list[str] = []
    without = []
    for path in paths:
        begin = {by_path[path]} if path in by_path else sources.naming(path)
        found = _dependents(sources, begin)
        readers += [each for start in READERS if path.startswith(start) for each in READERS[start]]
        if not any(_is_test(sources, module) for module in found) and not path.startswith(
            tuple(READERS)
        ):
            without.append(path)
        for module, far in found.items():
            distance[module] = min(far, distance.get(module, far))
    near = sorted(
        (far, str(sources.paths[module].relative_to(root)))
        for module, far in distance.items()
        if _is_test(sources, module)
    )
    chosen = [path for _, path in near]
    if any(path.endswith(".py") for path in paths):
        readers += ALWAYS
    return list(dict.fromkeys([*chosen, *readers])), without


def _is_test(sources: Sources, module: str) -> bool:
    return module.startswith("tests.") and sources.paths[module].name.startswith("test_")


def _dependents(sources: Sources, begin: set[str]) -> dict[str, int]:
    """Modules that depend on some, these included, with the number of imports in between."""
    found, layer = dict.fromkeys(begin, 0), set(begin)
    while layer:
        following = set()
        for module in layer:
            if module not in begin and _only_exports(sources, module):
                continue  # names are followed through a package, to the files that have them
            for each in sources.importers().get(module, ()):
                is_member = module in LISTS and module not in begin
                if each not in found and (not is_member or _is_test(sources, each)):
                    found[each] = found[module] + 1
                    following.add(each)
        layer = following
    return found


def _only_exports(sources: Sources, module: str) -> bool:
    """Whether a file only exports names of others, so that their changes do not change it."""
    if module == "jaxcoll":
        return True
    return module not in LISTS and sources.is_package(module) and not sources.read(module).defines


def main(argv: Sequence[str]) -> None:
    """Prints the files of tests, and on stderr the changed files that none depends on."""
    parser = argparse.ArgumentParser(prog="scripts/test --changed", description=__doc__)
    parser.add_argument("against", nargs="?", default="main", help="a branch (%(default)s)")
    paths = changed(parser.parse_args(argv).against)
    chosen, without = chosen_tests(paths, ROOT)
    for path in without:
        print(f"no test depends on {path}", file=sys.stderr)
    print(*chosen, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
