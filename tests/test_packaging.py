"""The wheel and the sdist: their files, and that they run in an environment of their own."""

from __future__ import annotations

import configparser
import functools
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


def settings() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser()
    parsed.read(ROOT / "setup.cfg")
    return parsed


def requirements() -> set[str]:
    lines = settings()["options"]["install_requires"].strip().splitlines()
    return {line.strip() for line in lines if not line.strip().startswith("#")}


@pytest.fixture(scope="module")
def release() -> Iterator[ModuleType]:
    """The module of ``scripts/release``, which is a script and in no package."""
    spec = importlib.util.spec_from_file_location("release", ROOT / "packaging/release.py")
    assert spec is not None
    assert spec.loader is not None
    module, path = importlib.util.module_from_spec(spec), sys.path[:]
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path


def test_one_version_everywhere(release):
    version = settings()["metadata"]["version"]
    assert release.agreed(release.versions()) == version
    assert set(release.versions()) == {
        *("setup.cfg", "CITATION.cff", "packaging/conda/recipe.yaml", "CHANGELOG.md")
    }


@pytest.mark.parametrize("name", ["CITATION.cff", "packaging/conda/recipe.yaml", "CHANGELOG.md"])
def test_a_release_whose_versions_differ_is_refused(release, name, tmp_path):
    version = settings()["metadata"]["version"]
    for each in release.STATED:
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / each).read_text()
        (tmp_path / each).write_text(text.replace(version, "9.9.9") if each == name else text)
    with pytest.raises(SystemExit, match=rf"9\.9\.9 +{name}"):
        release.agreed(release.versions(tmp_path))
    (tmp_path / name).write_text("no version\n")
    with pytest.raises(SystemExit, match=f"{name} states no version"):
        release.versions(tmp_path)


def test_a_release_names_all_that_prevents_its_tag(release, tmp_path, capsys):
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", tmp_path, *arguments], check=True, capture_output=True)

    log = tmp_path / "CHANGELOG.md"
    log.write_text("# Changelog\n\n## 1.2.3 (unreleased)\n")
    git("init", "-q")
    assert [line.partition(":")[0] for line in release.missing("1.2.3", tmp_path)] == [
        *("CHANGELOG.md", "git status")
    ]
    log.write_text("# Changelog\n\n## 1.2.3 (2026-11-30)\n")
    git("add", ".")
    git(*("-c", "user.name=a", "-c", "user.email=a@b"), "commit", "-qm", "one")
    assert release.missing("1.2.3", tmp_path) == []
    assert len(release.missing("1.2.4", tmp_path)) == 1
    git("tag", "v1.2.3")
    assert "the tag v1.2.3 exists" in release.missing("1.2.3", tmp_path)[0]

    assert release.tell("1.2.3", ["date it"], offline=False) == 1
    assert "- date it" in capsys.readouterr().out
    assert release.tell("1.2.3", [], offline=True) == 1
    assert "git tag" not in capsys.readouterr().out
    assert release.tell("1.2.3", [], offline=False) == 0
    assert "git tag -a v1.2.3 " in capsys.readouterr().out


MOST_HEADLINES = 36


def test_a_release_is_some_thirty_headlines_with_links():
    """All else is in git: a list of everything is read by nobody."""
    _, *releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert releases
    for text in releases:
        headlines = re.split(r"^- ", text, flags=re.MULTILINE)[1:]
        assert 1 <= len(headlines) <= MOST_HEADLINES
        assert [line for line in headlines if "](docs/" not in line] == []
        for target, place in re.findall(r"\]\((docs/[\w.-]+)(?:#([\w-]+))?\)", text):
            page = (ROOT / target).read_text(encoding="utf-8")
            titles = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
            assert not place or place in anchors, (target, place)


def test_pages_name_the_licence_and_the_pythons_of_the_package():
    metadata = settings()["metadata"]
    assert f"\nlicense: {metadata['license_expression']}\n" in (ROOT / "CITATION.cff").read_text()
    tried = re.findall(r"Python :: (3\.\d+)", metadata["classifiers"])
    assert f"| Python | {tried[0]} | {tried[-1]} |" in (ROOT / "docs/install.md").read_text()
    assert settings()["options"]["python_requires"] == f">={tried[0]}"


def test_the_recipe_requires_what_the_package_does():
    recipe = (ROOT / "packaging/conda/recipe.yaml").read_text()
    run = re.findall(r"^    - (.*)$", recipe.partition("  run:\n")[2].partition("tests:")[0], re.M)
    assert {line.replace(" ", "") for line in run} - {"python>=3.11"} == requirements()
    page = (ROOT / "docs/install.md").read_text()
    for requirement in requirements():
        name, _, lowest = requirement.partition(">=")
        assert f"| {name} | {lowest} |" in page


def test_the_build_needs_nothing_that_the_package_does_not():
    with (ROOT / "pyproject.toml").open("rb") as file:
        needed = tomllib.load(file)["build-system"]["requires"]
    needed = {each for each in needed if not each.startswith("setuptools")}
    # The player is compiled with the oldest headers, whose calls later ones run.
    (headers,) = {each for each in needed if each.startswith("jaxlib")}
    assert headers.partition(";")[0].replace("jaxlib==", "jax>=") in requirements()
    assert needed - {headers} <= requirements()


def test_what_one_file_or_the_studies_need_is_not_installed_with_the_package():
    names = {re.split(r"[<>=]", line)[0] for line in requirements()}
    assert names == {"jax", "numpy", "scipy", "numba", "highspy", "click"}
    extras = settings()["options.extras_require"]
    for extra in ("lp", "test", "experiments"):
        assert "cvxpy" in extras[extra]


def test_measured_tables_are_small():
    """All that a wheel has of them, unpacked."""
    files = list((ROOT / "jaxcoll/measured/data").iterdir())
    assert len(files) >= 6
    assert sum(path.stat().st_size for path in files) <= 300_000


BUILD = """
import sys
from setuptools import build_meta
out = sys.argv.pop()
build_meta.build_wheel(out)
build_meta.build_sdist(out)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The wheel and the sdist of the files that git knows, built without a network."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("built")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    for name in filter(None, map(os.fsdecode, names)):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-c", BUILD, out],
        cwd=tree, check=True, capture_output=True, text=True,
        env={**os.environ, "JAXCOLL_MACHINE_CODE": "0"},  # which takes two minutes
    )  # fmt: skip
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


@pytest.mark.slow
def test_the_wheel_holds_the_two_packages_alone(built):
    names = zipfile.ZipFile(built[0]).namelist()
    tops = {name.partition("/")[0] for name in names}
    version = settings()["metadata"]["version"]
    assert tops == {"jaxcoll", "tensorstate", f"jaxcoll-{version}.dist-info"}
    assert {"jaxcoll/py.typed", "tensorstate/py.typed"} <= set(names)
    assert {"jaxcoll/aot/h100.txtpb", "jaxcoll/finder/paper.json"} <= set(names)
    tables = {name for name in names if name.startswith("jaxcoll/measured/data/")}
    assert {Path(name).name for name in tables} == {
        path.name for path in (ROOT / "jaxcoll/measured/data").iterdir()
    }
    assert f"jaxcoll-{version}.dist-info/licenses/NOTICE" in names
    with tarfile.open(built[1]) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"setup.cfg", "pyproject.toml", "README.md", "LICENSE", "jaxcoll/py.typed"} <= inside


SMOKE = """
import sys
import jaxcoll as jc, tensorstate
from pathlib import Path
assert Path(jc.__file__).is_relative_to(sys.prefix), jc.__file__
assert Path(tensorstate.__file__).is_relative_to(sys.prefix)
topology = jc.topologies.torus(2, 2)
schedule = jc.synthesize(topology, "all_reduce", nbytes=1e6)
jc.io.save("schedule.json", schedule)
assert jc.io.load("schedule.json") == schedule
jc.finder.find(8, 2, rates=False)
assert len(jc.measured.tables()) >= 6
import importlib.util
assert importlib.util.find_spec("experiments") is None
"""


# What an sdist compiles where it is installed, and a wheel that was built without does not have.
COMPILED = """
import sys
from jaxcoll.execute.links import build
from jaxcoll.numerics import machine_code
from pathlib import Path
has = [machine_code.library() is not None, any(Path(build.__file__).parent.glob(build.PATTERN))]
assert has == [sys.argv[1] == "sdist"] * 2, has
"""


def with_few_kernels(sdist: Path, folder: Path) -> Path:
    """The sdist unpacked, with a line of each of its first kernels: all take two minutes."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    listed = tree / "jaxcoll/numerics/signatures.txt"
    listed.write_text("".join(listed.read_text().splitlines(keepends=True)[:4]))
    return tree


@pytest.mark.slow
@pytest.mark.parametrize("which", ["wheel", "sdist"])
def test_it_runs_in_an_environment_of_its_own(built, which, tmp_path):
    """Dependencies are those of this environment; the package is the one that was built."""
    wheel, sdist = built
    given = wheel if which == "wheel" else with_few_kernels(sdist, tmp_path / "unpacked")
    home = tmp_path / "home"
    venv.create(home, with_pip=True)
    site = next((home / "lib").glob("python*/site-packages"))
    # A path without .pth files of its own, so that an editable install here stays out of sight.
    (site / "dependencies.pth").write_text(f"{Path(np.__file__).parents[1]}\n")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run(*command: object) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    python = home / "bin/python"
    install = ["install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    run(python, "-m", "pip", *install, "--ignore-installed", given)
    run(python, "-c", SMOKE)
    run(python, "-c", COMPILED, which)
    done = run(home / "bin/jaxcoll", "--version")
    assert done.stdout == f"jaxcoll {settings()['metadata']['version']}\n"
    run(home / "bin/jaxcoll", "verify", "schedule.json")


@pytest.mark.slow
@pytest.mark.timeout(1500)  # 50 CPU s, which a shared machine spreads over minutes
def test_a_rehearsal_of_a_release_builds_and_tries_both_files(release, tmp_path, capsys):
    """By the files of the last commit; without machine code, which takes two minutes each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXCOLL_MACHINE_CODE", "0")
        assert release.main(["--offline", "--out", str(tmp_path)]) == 1
    version = settings()["metadata"]["version"]
    assert {path.name for path in tmp_path.iterdir()} == {
        *(f"jaxcoll-{version}.tar.gz", f"jaxcoll-{version}-py3-none-any.whl")
    }
    printed = capsys.readouterr().out
    assert printed.count("sha256") == 2
    assert "- this was a rehearsal" in printed


@pytest.mark.slow
def test_a_file_that_does_not_do_what_the_readme_says_is_refused(
    release, built, tmp_path, monkeypatch
):
    check = functools.partial(release.check, built[0], offline=True)
    with pytest.raises(SystemExit, match=r"printed 'jaxcoll .*', not 9\.9\.9"):
        check("9.9.9", tmp_path / "version")
    monkeypatch.setattr(release, "readme_example", lambda: "print(1.5)  # 2.5")
    with pytest.raises(SystemExit, match="the README's example printed something else"):
        check(settings()["metadata"]["version"], tmp_path / "example")
