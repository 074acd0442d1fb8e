"""The page on ForestColl runs as printed and says what it prints."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "forestcoll.md"


def test_the_page_says_what_it_prints(capsys):
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    for block in code:
        exec(block, names)
    printed = capsys.readouterr().out.splitlines()
    said = [line.partition("  # ")[2] for block in code for line in block.splitlines()]
    said = [text for text in said if text]
    assert len(printed) == len(said) == 7
    assert printed[0].startswith(said[0].removesuffix(" ..."))
    assert printed[1] == said[1]
    assert said[2].endswith(", near the optimum")
    assert said[2].removesuffix(", near the optimum") in printed[2]
    algbw = re.search(r"algbw ([\d.]+)", printed[2])
    assert algbw is not None
    assert 0.97 * 346.667 < float(algbw[1]) <= 346.667
    assert printed[3:] == said[3:]
