"""The site: pages made from the code, every page in its contents, built without warnings."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import jaxcoll as jc
from jaxcoll.cli import COMMANDS

DOCS = Path(__file__).parents[1] / "docs"


def module_of(name: str):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generated(tmp_path_factory) -> Path:
    module = module_of("generated_pages")
    folder = tmp_path_factory.mktemp("reference")
    module.write_pages(folder)
    return folder


def test_figures_follow_the_theme_and_can_be_read_on_a_phone():
    """In either way in which furo is dark; and not scaled to the width of a phone."""
    settings: dict[str, object] = {"release": "1"}
    text = (DOCS / "conf.py").read_text(encoding="utf-8")
    for line in text.splitlines():
        if re.match(r"(html_\w+|author|copyright) = ", line):
            exec(line, settings)
    (name,) = settings["html_css_files"]  # type: ignore[misc]
    (folder,) = settings["html_static_path"]  # type: ignore[misc]
    rules = (DOCS / folder / name).read_text(encoding="utf-8")
    dark = re.search(r"prefers-color-scheme: dark\) \{\s*(\S.*?) \{ filter: invert", rules)
    assert dark is not None
    assert dark[1] == 'body:not([data-theme="light"]) article img'
    assert 'body[data-theme="dark"] article img { filter: invert' in rules
    phone = rules.partition("max-width: 46rem")[2]
    assert "overflow-x: auto" in phone
    assert "max-width: none; width: auto" in phone
    assert settings["copyright"] == "The jaxcoll developers, Apache License 2.0"


def test_every_synthesizer_has_a_page_that_says_what_it_is_for(generated):
    pages = {path.stem for path in (generated / "synthesizers").iterdir()}
    assert pages == set(jc.synth.SYNTHESIZERS)
    for path in (generated / "synthesizers").iterdir():
        text = path.read_text(encoding="utf-8")
        idea = text.partition("## The idea")[2].partition("## Guarantee")[0]
        assert len(idea) > 40, path
        assert "Collectives: " in text
    ring = (generated / "synthesizers/ring.md").read_text(encoding="utf-8")
    assert "Collectives: all_gather, reduce_scatter, all_reduce, reduce_to_some. " in ring


def test_every_command_and_public_name_is_described(generated):
    commands = (generated / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\w+)$", commands, re.MULTILINE) == list(COMMANDS)
    names = (generated / "api/jaxcoll.md").read_text(encoding="utf-8")
    for name in set(jc.__all__) - {"synth", "topologies"}:
        assert f":: jaxcoll.{name}\n" in names or f"`jaxcoll.{name}` is `" in names
    for module, moved in jc._MOVED.items():
        page = (generated / f"api/jaxcoll.{module}.md").read_text(encoding="utf-8")
        for name in {*moved} - {"SYNTHESIZERS"}:
            assert f":: jaxcoll.{module}.{name}\n" in page


def test_links_lead_to_pages_made_from_the_code(generated):
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(reference/([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (generated / target).is_file(), page.name


def test_every_page_stands_in_the_contents():
    contents = re.findall(r"^[\w/-]+$", (DOCS / "index.md").read_text(), re.MULTILINE)
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    pages |= {f"notebooks/{path.stem}" for path in (DOCS / "notebooks").glob("*.md")}
    assert pages == {name for name in contents if not name.startswith("reference/")}


SLOW = {"a-plan"}  # searches plans of a model of some depth
NOTEBOOKS = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in SLOW))
    for path in sorted((DOCS / "notebooks").glob("*.md"))
]


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_the_blocks_of_notebooks_run_and_show_something(path, tmp_path):
    module, text = module_of("executed_blocks"), path.read_text(encoding="utf-8")
    results = module.run_page(text, path.stem, tmp_path)
    assert len(results) == text.count("```python\n") > 2
    assert all(each["printed"] or "html" in each or "figure" in each for each in results)
    for each in results:
        assert "False" not in each["printed"]
        if "figure" in each:
            assert (tmp_path / each["figure"]).read_bytes().startswith(b"\x89PNG")
    assert module.with_outputs(text, results).count("```python\n") == len(results)


def test_a_block_that_fails_stops_the_build(tmp_path):
    module = module_of("executed_blocks")
    page = "# A page\n\n```python\n1 / 0\n```\n"
    with pytest.raises(RuntimeError, match=r"notebooks/bad.md does not run:(.|\n)*ZeroDivision"):
        module.run_page(page, "bad", tmp_path)


def test_outputs_stand_below_their_block():
    module = module_of("executed_blocks")
    page = "```python\n1\n```\nbetween\n\n```python\n2\n```\n"
    results = [{"printed": "one"}, {"printed": "", "html": "<b>two</b>"}]
    assert module.with_outputs(page, results) == (
        "```python\n1\n```\n\n```text\none\n```\nbetween\n\n"
        "```python\n2\n```\n\n```{raw} html\n<b>two</b>\n```\n"
    )


def test_code_that_is_a_public_name_has_a_place_in_the_api():
    pytest.importorskip("docutils")
    entry = types.SimpleNamespace
    objects = {
        "jaxcoll.psum": entry(docname="api/jaxcoll", node_id="jaxcoll.psum", objtype="function"),
        "jaxcoll.Topology": entry(docname="api/jaxcoll", node_id="T", objtype="class"),
        "jaxcoll.tune.Report": entry(docname="a", node_id="a", objtype="class"),
        "tensorstate.Report": entry(docname="b", node_id="b", objtype="class"),
    }
    found = module_of("cross_links").targets(objects)
    assert found["jc.psum"] == found["jaxcoll.psum"] == ("api/jaxcoll", "jaxcoll.psum")
    assert found["Topology"] == ("api/jaxcoll", "T")
    assert "Report" not in found
    assert "psum" not in found


ITEM = re.compile(r"( *)(?:[0-9]+\.|-|\*) (?=\S)")
HEADING = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Warns|Example|Examples):$")
ENTRY = re.compile(r"    \S.*:")


def badly_continued(text: str) -> list[str]:
    """Lines that are not indented as the text which they continue, as Sphinx demands.

    Looked at are paragraphs without indentation, their lists, and the entries of sections.
    """
    found, lines, section = [], text.split("\n"), ""
    for line, after in itertools.pairwise(lines):
        indent = len(after) - len(after.lstrip())
        if line.strip() and not line.startswith(" "):
            heading = HEADING.match(line)
            section = heading[1] if heading else ""
        if not line.strip() or not after.strip() or HEADING.match(line):
            continue
        if item := ITEM.match(line):
            is_fine = indent == item.end() or bool(ITEM.match(after))
        elif not line.startswith(" "):
            is_fine = indent == 0 or bool(ITEM.match(after))
        elif section in ("Args", "Attributes", "Raises") and indent <= 4:
            is_fine = bool(ENTRY.match(after))
        else:
            is_fine = True
        if not is_fine:
            found.append(after)
    return found


@pytest.mark.parametrize("package", ["jaxcoll", "tensorstate", "experiments"])
def test_lines_of_docstrings_are_indented_for_the_site(package):
    found = {
        f"{path}: {line}"
        for path in sorted((DOCS.parent / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        for line in badly_continued(ast.get_docstring(node) or "")
    }
    assert not found


def test_a_badly_indented_line_is_found():
    assert badly_continued("1. One\nand more") == ["and more"]
    assert badly_continued("One\n  and more") == ["  and more"]
    assert badly_continued("Args:\n    x: one\n    and more") == ["    and more"]
    assert not badly_continued("Args:\n    x: one\n        and more\n    y: two")
    assert badly_continued("- One\n   and more\n") == ["   and more"]
    assert not badly_continued("1. One\n   and more\n2. Two\n\nText")


@pytest.mark.slow
def test_it_is_built_without_warnings(tmp_path):
    if any(importlib.util.find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")):
        pytest.skip("Sphinx is not installed: scripts/docs")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", DOCS, tmp_path]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "quick-start.html").is_file()
    assert "GB/s at most" in (tmp_path / "notebooks/ring-and-better.html").read_text()
    assert (tmp_path / "plan-page.html").is_file()
