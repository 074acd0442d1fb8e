"""The README is short, its quick start runs as printed, and its pictures exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.printed import false_claims, marked, separated

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_LINES = 100
MOST_BYTES = 150_000  # of a picture


def test_it_is_short():
    assert len(README.splitlines()) <= MOST_LINES


def test_the_quick_start_prints_what_it_says(tmp_path):
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    assert len(code[1].splitlines()) <= 12
    # As on a machine that was not set up for it.
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    output = subprocess.run(
        [sys.executable, "-c", marked(code[1])],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    printed = separated(output)[1]
    assert len(printed) == 3
    assert list(false_claims(code[1], printed)) == []


def test_its_pictures_are_small_files_that_are_there():
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert pictures
    for picture in pictures:
        content = (ROOT / picture).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) < MOST_BYTES


def test_the_commands_it_names_are_there():
    commands = set(re.findall(r"scripts/\w+", README))
    assert commands >= {"scripts/run", "scripts/test"}
    for command in commands:
        assert os.access(ROOT / command, os.X_OK)
