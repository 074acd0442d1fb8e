"""The page about graphs: its code prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "graph.md"


def test_the_code_prints_what_the_page_shows(capsys):
    page = PAGE.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (said,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == said
