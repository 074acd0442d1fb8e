"""The table of the door: its cheap parts, and what its numbers count."""

from __future__ import annotations

import pytest

from experiments.benchmarks.default import cold


def test_pages_and_commands_are_counted(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\na = 1\n```\ntext\n```bash\nls\n```\n```python\nb = 2\n```\n")
    assert cold.blocks(page) == ["a = 1\n", "b = 2\n"]
    counted = {str(row["what"]): row["value"] for row in cold.pages()}
    assert counted["commands"] == 20
    assert int(str(counted["blocks of Python in the pages, run by tests"])) > 50


def test_seconds_are_those_of_the_process():
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    assert cold.cpu_seconds(["-c", busy]) >= 0.3
    with pytest.raises(cold.subprocess.CalledProcessError):
        cold.cpu_seconds(["-c", "raise SystemExit(3)"])


def test_folders_are_weighed(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/file").write_bytes(bytes(2**20))
    assert 1.0 <= cold.megabytes(tmp_path) < 1.2


def test_a_part_that_there_is_not_is_refused(capsys):
    with pytest.raises(SystemExit):
        cold.door(["windows"])
    assert "invalid choice" in capsys.readouterr().err
