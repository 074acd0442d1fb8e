"""Random calls beside the same calls of ``jax.lax``: none differs."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "tests.execute.differential"]


def run(*arguments: str) -> None:
    # In a process of its own, which may turn 64 bits on, and which XLA may abort.
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " same" in done.stdout


def test_sixty_cases():
    run("--cases", "60", "--seed", "5000")


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_thousand_cases():
    run("--cases", "2000")
