"""The page about running schedules: its code runs, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "execution.md"


def test_the_code_prints_what_its_comments_say(capsys):
    code = "".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    said = re.findall(r"print\(.*\)  # (.*)", code)
    assert said
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.splitlines() == said
