"""The pages under docs/ run as printed, and the files they point to exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def run_page(page: str, blocks: int, folder: Path) -> list[str]:
    """The lines that a page's code prints on 8 devices."""
    code = re.findall(r"```python\n(.*?)```", text(page), re.DOTALL)
    assert len(code) == blocks
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    return subprocess.run(
        [sys.executable, "-c", "\n".join(code)],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()


def test_the_training_page_trains(tmp_path):
    first, second, flax, nnx, converted, third = map(float, run_page("training.md", 7, tmp_path))
    assert second < first < 0.5
    # Both go on from the parameters that were trained.
    assert flax < second
    assert converted < second
    assert nnx < 2
    assert third < 2


def test_the_page_of_the_tuner_searches(tmp_path):
    points, share = run_page("tuner.md", 1, tmp_path)
    assert points == "251,658,240"
    assert float(share) > 0.95


def test_the_page_of_plans_plans_and_runs(tmp_path):
    printed = run_page("tensorstate.md", 3, tmp_path)
    assert printed[1].startswith("= ")
    assert any("megatron" in line for line in printed)
    assert any(line.startswith("params/up: parameter") for line in printed)
    losses = re.fullmatch(r"loss ([\d.]+), on one device ([\d.]+)", printed[-2])
    assert losses is not None
    count = re.fullmatch(r"(\d+) microbatches", printed[-1])
    assert count is not None
    assert int(count[1]) > 1
    assert float(losses[1]) == pytest.approx(float(losses[2]), rel=1e-5)


def test_two_lines_of_the_step_are_changed():
    assert text("training.md").count("# was: ") == 2


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", text(page)):
        assert (DOCS / target).is_file()


def test_the_architecture_page_names_files_that_exist():
    table = text("architecture.md").partition("## jaxcoll\n")[2].partition("## ")[0]
    names = [name for row in table.splitlines()[4:] for name in re.findall(r"`([\w/.]+)`", row)]
    paths = [name for name in names if name.endswith((".py", "/"))]
    assert len(paths) > 20
    assert [path for path in paths if not (DOCS.parent / "jaxcoll" / path).exists()] == []
