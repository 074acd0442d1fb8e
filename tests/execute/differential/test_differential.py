"""Random calls beside the same calls of ``jax.lax``: none differs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.execute.differential.runs import compared

COMMAND = [sys.executable, "-m", "tests.execute.differential"]


def test_ten_cases():
    # Compared in a process of their own, which may turn 64 bits on, and which XLA may abort.
    found = list(compared(5010, 10))
    assert [case for case in found if case[1] == "differs"] == []
    verdicts = [verdict for _, verdict, _ in found]
    assert len(verdicts) == 10
    assert verdicts.count("same") > 5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_hundred_cases():
    """By hand thousands: `python -m tests.execute.differential`."""
    done = subprocess.run([*COMMAND, "--cases", "300"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " same" in done.stdout
