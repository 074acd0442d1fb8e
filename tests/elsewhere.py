"""What code prints in processes of its own, whose hashes of strings differ."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def printed_elsewhere(code: str) -> set[str]:
    """The distinct outputs of the code in two processes with other hash seeds."""
    return {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PATH": ""},
        ).stdout
        for seed in ("1", "2")
    }
