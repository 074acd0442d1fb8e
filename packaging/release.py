"""Builds sdist and wheel of HEAD, tries each in an environment of its own, says what to tag.

``scripts/release`` runs it. Uncommitted changes are not part of a release, so they are not built
either: the files are those of ``git archive HEAD``. The wheel is built from the sdist, not from the
checkout, since that is what pip does for everybody for whom no wheel fits.

The end says what still prevents the tag (a heading of CHANGELOG.md without a date, changes that are
not committed, a tag that exists), or the commands that make it. Nothing is tagged or uploaded here.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The checkout, for the test's reader of what the README claims; a script's own folder leads the
# path, and `packaging` in it would hide the library of that name from pip's processes.
sys.path[0] = str(ROOT)

from tests.claims.printed import false_claims, marked, separated  # noqa: E402

OUT = ROOT / "results/release"
FIRST_LINE = str(__doc__).partition("\n")[0]

# Each file that states the version, and the pattern by which it does.
STATED = {
    "setup.cfg": r"^version = (.+)$",
    "CITATION.cff": r"^version: (.+)$",
    "packaging/conda/recipe.yaml": r'^  version: "(.+)"$',
    "CHANGELOG.md": r"^## (\S+) \(",
}


def versions(root: Path = ROOT) -> dict[str, str]:
    """The version that each file states, CHANGELOG.md by its newest heading.

    Raises:
        SystemExit: a file states none.
    """
    found = {}
    for name, pattern in STATED.items():
        match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        if match is None:
            sys.exit(f"{name} states no version: expected a line like {pattern}")
        found[name] = match[1]
    return found


def agreed(found: Mapping[str, str]) -> str:
    """The one version of all files.

    Raises:
        SystemExit: they differ.
    """
    if len(set(found.values())) > 1:
        lines = "\n".join(f"  {version:8} {name}" for name, version in found.items())
        sys.exit(f"the versions differ; give all files that of setup.cfg:\n{lines}")
    return found["setup.cfg"]


def missing(version: str, root: Path = ROOT) -> list[str]:
    """What prevents the tag, a line each."""
    found = []
    heading = re.search(r"^## .*$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    if heading is None or not re.fullmatch(rf"## {version} \(\d{{4}}-\d\d-\d\d\)", heading[0]):
        found.append(f"CHANGELOG.md: write '## {version} (YYYY-MM-DD)' with the day of the release")
    if git(root, "status", "--porcelain"):
        found.append("git status: commit or stash the changes, which were not built")
    if git(root, "tag", "--list", f"v{version}"):
        found.append(f"the tag v{version} exists: raise the version in {', '.join(STATED)}")
    return found


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


# ---------------------------------------------------------------------- building

SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv.pop())"


def build(out: Path, scratch: Path, *, offline: bool) -> list[Path]:
    """The sdist and the wheel of HEAD, in ``out``.

    Args:
        out: a folder, which is made; older builds in it are removed.
        scratch: an empty folder.
        offline: build by the packages of this environment, not by those that pyproject.toml names.
    """
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("*.whl"), *out.glob("*.tar.gz")]:
        old.unlink()
    archive = scratch / "head.tar"
    git(ROOT, "archive", "--output", str(archive), "HEAD")
    tree = scratch / "tree"
    with tarfile.open(archive) as packed:
        packed.extractall(tree, filter="data")
    run(sys.executable, "-c", SDIST, out, folder=tree)
    (sdist,) = out.glob("*.tar.gz")
    alone = ["--no-index", "--no-build-isolation"] * offline
    wheel = ["wheel", "-q", "--no-deps", *alone, "--wheel-dir", out, sdist]
    run(sys.executable, "-m", "pip", *wheel, folder=scratch)
    (built,) = out.glob("*.whl")
    return [sdist, built]


# ---------------------------------------------------------------------- trying


def check(built: Path, version: str, home: Path, *, offline: bool) -> None:
    """Installs a file into a new environment and runs what a reader runs first.

    Args:
        built: an sdist or a wheel.
        version: that ``jaxcoll --version`` has to print.
        home: the folder of the environment, which is made.
        offline: take the dependencies of this environment, not the newest of an index.

    Raises:
        SystemExit: a command failed, or printed something else than the README says.
    """
    venv.create(home, with_pip=True)
    alone: list[str] = []
    if offline:
        alone = ["--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
        site = next((home / "lib").glob("python*/site-packages"))
        # A line of a .pth file adds the folder without the .pth files in it, so that an editable
        # install of this checkout is not seen.
        (site / "dependencies.pth").write_text(f"{packages_of_this_environment()}\n")
    python, jaxcoll = home / "bin/python", home / "bin/jaxcoll"
    run(python, "-m", "pip", "install", "-q", *alone, built, folder=home)
    printed = run(jaxcoll, "--version", folder=home)
    if printed != f"jaxcoll {version}\n":
        sys.exit(f"{built.name}: jaxcoll --version printed {printed!r}, not {version}")
    code = readme_example()
    wrong = list(false_claims(code, separated(run(python, "-c", marked(code), folder=home))[1]))
    if wrong:
        sys.exit(f"{built.name}: the README's example printed something else: {wrong}")
    run(jaxcoll, "doctor", folder=home)


def packages_of_this_environment() -> Path:
    """The folder that holds the packages of this environment."""
    import numpy

    return Path(numpy.__file__).parents[1]


def readme_example() -> str:
    """The first block of Python in the README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    if found is None:
        sys.exit("README.md has no block of Python")
    return found[1]


def run(*command: object, folder: Path) -> str:
    """What a command prints, run outside of the checkout and without its path.

    Raises:
        SystemExit: it failed; with what it wrote.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        shown = " ".join(str(part) for part in command[:6])
        sys.exit(f"{shown} ... ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


# ---------------------------------------------------------------------- the command


def main(argv: Sequence[str]) -> int:
    """Builds, tries and reports; 0 where nothing prevents the tag, else 1."""
    parser = argparse.ArgumentParser(prog="scripts/release", description=FIRST_LINE)
    parser.add_argument(
        "--offline",
        action="store_true",
        help="with the packages of this environment: a rehearsal, whose wheel is not for others",
    )
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the files (%(default)s)")
    options = parser.parse_args(argv)
    version = agreed(versions())
    with tempfile.TemporaryDirectory() as scratch:
        files = build(options.out.resolve(), Path(scratch), offline=options.offline)
        for number, each in enumerate(files):
            home = Path(scratch, f"environment-{number}")
            check(each, version, home, offline=options.offline)
            digest = hashlib.sha256(each.read_bytes()).hexdigest()
            print(f"{each}  {each.stat().st_size / 1e6:.1f} MB  sha256 {digest}")
    print(
        "Both install; the README's example prints what it says; jaxcoll doctor finds everything."
    )
    return tell(version, missing(version), offline=options.offline)


def tell(version: str, left: Sequence[str], *, offline: bool) -> int:
    """Prints what is left to do, or the commands that tag; the exit status."""
    if offline:
        left = [*left, "this was a rehearsal: build without --offline"]
    if left:
        print("Not ready to be tagged:", *(f"- {each}" for each in left), sep="\n")
        return 1
    commit = git(ROOT, "rev-parse", "HEAD")
    print(
        f"To tag it:\n  git tag -a v{version} -m 'jaxcoll {version}' {commit}\n"
        f"  git push origin v{version}\n"
        "PyPI refuses wheels whose name ends in linux_x86_64: upload the sdist alone, or the wheel "
        "after auditwheel."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
