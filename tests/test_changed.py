"""The tests that ``scripts/test --changed`` chooses, on trees made for it."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests import changed

Chooses = Callable[..., list[str]]
MOVED = "Edges"  # no test may import it so

FOLDER = "jaxcoll"
BASE = {
    "jaxcoll.__init__": """
        _NAMES = {"simulation": ("simulate",), "synth": ("synthesize",)}
        _MOVED = {"paths": ("Edges",)}
        if TYPE_CHECKING:
            from jaxcoll import unrelated
        """,
    "jaxcoll.paths": "class Edges: ...",
    "jaxcoll.simulation": "def simulate(): ...",
    "jaxcoll.unrelated": "X = 1",
    "jaxcoll.synth.__init__": """
        from jaxcoll.synth.entry import synthesize
        from jaxcoll.synth.ring import Ring
        from jaxcoll.synth.swing import Swing
        """,
    "jaxcoll.synth.entry": "from jaxcoll.synth.registry import ALL\ndef synthesize(): ...",
    "jaxcoll.synth.registry": """
        from jaxcoll.synth.ring import Ring
        from jaxcoll.synth.swing import Swing
        """,
    "jaxcoll.synth.ring": "from jaxcoll.paths import Edges\nclass Ring: ...",
    "jaxcoll.synth.swing": "class Swing: ...",
    "tests.conftest": "import jaxcoll.unrelated",
    "tests.oracle": "import jaxcoll.paths",
    "tests.test_house": "",
}


@pytest.fixture
def chooses(tmp_path) -> Chooses:
    """The tests chosen in the tree of ``BASE`` and some files more, of changed ones.

    Modules are named and answered by their names, since these files exist for a test only.
    """

    def path_of(name: str) -> str:
        return name if "/" in name else f"{name.replace('.', '/')}.py"

    def name_of(path: str) -> str:
        return path.removesuffix(".py").replace("/", ".") if path.endswith(".py") else path

    def choose(more: Mapping[str, str], *paths: str) -> list[str]:
        for name, text in {**BASE, **more}.items():
            path = tmp_path / path_of(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        chosen, without = changed.chosen_tests([path_of(each) for each in paths], tmp_path)
        found = [path for path in chosen if path not in (*changed.ALWAYS, *changed.READERS)]
        return [*map(name_of, found), *(f"none: {name_of(path)}" for path in without)]

    return choose


@pytest.mark.parametrize(
    "code",
    [
        "from jaxcoll.paths import Edges",
        "import jaxcoll.paths",
        "import jaxcoll as jc\njc.Edges",
        "import jaxcoll as jc\nprint(jc.paths.Edges.of())",
        "from jaxcoll import paths",
        f"from jaxcoll import {MOVED}",
        "from jaxcoll.synth import Ring",  # which imports it
        "import jaxcoll as jc\njc.synth.Ring()",
        "from tests import oracle",
        "from tests.oracle import check",
        'run("-c", "import jaxcoll.paths")',
        'run("""\nfrom jaxcoll.paths import Edges\n""")',
        'importlib.import_module("jaxcoll.paths")',
        "def test_it():\n    from jaxcoll.paths import Edges",
    ],
)
def test_every_way_to_a_changed_file_is_found(chooses, code):
    assert chooses({"tests.test_it": code}, "jaxcoll.paths") == ["tests.test_it"]


@pytest.mark.parametrize(
    "code",
    [
        "import jaxcoll as jc\njc.synthesize()",
        "from jaxcoll.synth import Swing",
        "from jaxcoll.synth import synthesize",
        "import jaxcoll as jc\njc.simulate()",
        "x = 'paths'",
    ],
)
def test_packages_and_lists_lead_to_no_others(chooses, code):
    """Whoever asks for the fastest schedule does not depend on every synthesizer."""
    found = chooses({"tests.test_it": code}, "jaxcoll.paths")
    assert found == ["none: jaxcoll.paths"]


def test_the_tests_of_a_list_are_those_of_its_members(chooses):
    more = {
        "tests.test_battery": "from jaxcoll.synth.registry import ALL",
        "tests.test_call": "import jaxcoll as jc\njc.synthesize()",
    }
    assert chooses(more, "jaxcoll.synth.swing") == ["tests.test_battery"]
    assert chooses(more, "jaxcoll.synth.registry") == [*("tests.test_battery", "tests.test_call")]


def test_the_nearest_come_first_and_a_changed_test_is_itself_chosen(chooses):
    more = {
        "tests.test_a": "from jaxcoll.synth.ring import Ring",
        "tests.test_z": "from jaxcoll.paths import Edges",
    }
    assert chooses(more, "jaxcoll.paths") == ["tests.test_z", "tests.test_a"]
    assert chooses(more, "tests.test_a") == ["tests.test_a"]


def test_a_folders_fixtures_are_those_of_its_tests(chooses):
    more = {
        "tests.deep.conftest": "import jaxcoll.unrelated",
        "tests.deep.test_in": "",
        "tests.test_out": "",
    }
    assert chooses(more, "jaxcoll.unrelated") == ["tests.deep.test_in"]


def test_files_that_are_not_python_are_found_by_their_names(chooses):
    more = {
        "tests.test_rows": 'open("table.json")',
        "tests.test_use": "import jaxcoll.reader",
        "jaxcoll.reader": 'open("data.txt")',
    }
    assert chooses(more, f"{FOLDER}/data.txt") == ["tests.test_use"]
    assert chooses(more, f"{FOLDER}/table.json") == ["tests.test_rows"]
    assert chooses(more, f"{FOLDER}/none.json") == [f"none: {FOLDER}/none.json"]


def test_pages_have_the_tests_that_read_all_pages(tmp_path):
    chosen, without = changed.chosen_tests(["docs/bounds.md"], tmp_path)
    assert "tests/test_docs.py" in chosen
    assert without == []


def test_the_files_that_the_choice_names_exist():
    for path in {*changed.ALWAYS, *(each for some in changed.READERS.values() for each in some)}:
        assert (changed.ROOT / path).exists(), path
    modules = changed.Sources(changed.ROOT).paths
    assert set(modules) >= changed.LISTS


def test_changed_files_are_those_of_the_branch_and_of_the_tree(tmp_path, monkeypatch):
    def git(*arguments: str) -> None:
        named = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        subprocess.run(named, check=True, capture_output=True)

    def write(name: str, text: str) -> None:
        Path(tmp_path, name).write_text(text)

    monkeypatch.setattr(changed, "ROOT", tmp_path)
    git("init", "-q", "-b", "main")
    for name in ("kept.py", "committed.py", "edited.py"):
        write(name, "")
    git("add", ".")
    git("commit", "-qm", "one")
    git("checkout", "-qb", "work")
    write("committed.py", "x = 1")
    git("commit", "-qam", "two")
    write("edited.py", "x = 1")
    write("new.py", "")
    assert changed.changed("main") == ["committed.py", "edited.py", "new.py"]
    with pytest.raises(SystemExit, match="the branch nowhere, which git does not know"):
        changed.changed("nowhere")
