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
@pytest.mark.timeout(7200)
def test_two_thousand_cases():
    done = subprocess.run(
        [*COMMAND, "--cases", "2000"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " same" in done.stdout
