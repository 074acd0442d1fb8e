"""The tests that ``scripts/test --changed`` chooses, on trees made for it."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests import changed

Chooses = Callable[..., list[str]]

BASE = {
    "jaxcoll/__init__.py": """
        _NAMES = {"simulation": ("simulate",), "synth": ("synthesize",)}
        _MOVED = {"paths": ("Edges",)}
        if TYPE_CHECKING:
            from jaxcoll import unrelated
        """,
    "jaxcoll/paths.py": "class Edges: ...",
    "jaxcoll/simulation.py": "def simulate(): ...",
    "jaxcoll/unrelated.py": "X = 1",
    "jaxcoll/synth/__init__.py": """
        from jaxcoll.synth.entry import synthesize
        from jaxcoll.synth.ring import Ring
        from jaxcoll.synth.swing import Swing
        """,
    "jaxcoll/synth/entry.py": "from jaxcoll.synth.registry import ALL\ndef synthesize(): ...",
    "jaxcoll/synth/registry.py": """
        from jaxcoll.synth.ring import Ring
        from jaxcoll.synth.swing import Swing
        """,
    "jaxcoll/synth/ring.py": "from jaxcoll.paths import Edges\nclass Ring: ...",
    "jaxcoll/synth/swing.py": "class Swing: ...",
    "tests/conftest.py": "import jaxcoll.unrelated",
    "tests/oracle.py": "import jaxcoll.paths",
    "tests/test_house.py": "",
}


@pytest.fixture
def chooses(tmp_path) -> Chooses:
    """The tests chosen in the tree of ``BASE`` and some files more; of what changed."""

    def choose(more: Mapping[str, str], *paths: str) -> list[str]:
        for name, text in {**BASE, **more}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        chosen, without = changed.chosen_tests(paths, tmp_path)
        assert set(without) <= set(paths)
        found = [path for path in chosen if path not in (*changed.ALWAYS, *changed.READERS)]
        return [*found, *(f"none: {path}" for path in without)]

    return choose


@pytest.mark.parametrize(
    "code",
    [
        "from jaxcoll.paths import Edges",
        "import jaxcoll.paths",
        "import jaxcoll as jc\njc.Edges",
        "import jaxcoll as jc\nprint(jc.paths.Edges.of())",
        "from jaxcoll import paths",
        "from jaxcoll import Edges",
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
    assert chooses({"tests/test_it.py": code}, "jaxcoll/paths.py") == ["tests/test_it.py"]


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
    found = chooses({"tests/test_it.py": code}, "jaxcoll/paths.py")
    assert found == ["none: jaxcoll/paths.py"]


def test_the_tests_of_a_list_are_those_of_its_members(chooses):
    more = {
        "tests/test_battery.py": "from jaxcoll.synth.registry import ALL",
        "tests/test_call.py": "import jaxcoll as jc\njc.synthesize()",
    }
    assert chooses(more, "jaxcoll/synth/swing.py") == ["tests/test_battery.py"]
    assert chooses(more, "jaxcoll/synth/registry.py") == [
        *("tests/test_battery.py", "tests/test_call.py")
    ]


def test_the_nearest_come_first_and_a_changed_test_is_itself_chosen(chooses):
    more = {
        "tests/test_a.py": "from jaxcoll.synth.ring import Ring",
        "tests/test_z.py": "from jaxcoll.paths import Edges",
    }
    assert chooses(more, "jaxcoll/paths.py") == ["tests/test_z.py", "tests/test_a.py"]
    assert chooses(more, "tests/test_a.py") == ["tests/test_a.py"]


def test_a_folders_fixtures_are_those_of_its_tests(chooses):
    more = {
        "tests/deep/conftest.py": "import jaxcoll.unrelated",
        "tests/deep/test_in.py": "",
        "tests/test_out.py": "",
    }
    assert chooses(more, "jaxcoll/unrelated.py") == ["tests/deep/test_in.py"]


def test_files_that_are_not_python_are_found_by_their_names(chooses):
    more = {
        "tests/test_rows.py": 'open("table.json")',
        "tests/test_use.py": "import jaxcoll.reader",
        "jaxcoll/reader.py": 'open("data.txt")',
    }
    assert chooses(more, "jaxcoll/data.txt") == ["tests/test_use.py"]
    assert chooses(more, "jaxcoll/table.json") == ["tests/test_rows.py"]
    assert chooses(more, "jaxcoll/none.json") == ["none: jaxcoll/none.json"]


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
