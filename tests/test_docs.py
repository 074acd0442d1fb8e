"""The pages under docs/ run as printed, and point to what is there."""

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


def test_the_training_page_trains(tmp_path):
    code = re.findall(r"```python\n(.*?)```", text("training.md"), re.DOTALL)
    assert len(code) == 4
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    printed = subprocess.run(
        [sys.executable, "-c", "\n".join(code)],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    first, second, third = map(float, printed)
    assert second < first < 0.5
    assert third < 2


def test_two_lines_of_the_step_are_changed():
    assert text("training.md").count("# was: ") == 2


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", text(page)):
        assert (DOCS / target).is_file()
