"""The page around every interactive page: style, facts, notes, data and script in one file.

Nothing is taken from elsewhere, and the page's content policy forbids it. Names come from files
that are not trusted: in HTML they are escaped, and scripts read them from JSON and only ever set
them as text.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def page(
    kind: str, title: str, facts: Mapping[str, str], notes: Sequence[str], data: Mapping[str, Any]
) -> str:
    """The HTML of a page.

    Args:
        kind: its ``assets``: the body ``KIND.html`` and the script ``KIND.js``.
        title: of the page.
        facts: numbers that stand at the top, by name.
        notes: sentences on everything that the page leaves out.
        data: what its script reads, as JSON.
    """
    tiles = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in facts.items()
    )
    left_out = "".join(f"<p class=note>{escape(note)}</p>" for note in notes)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # An empty icon, or browsers ask the server for one.
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title><style>{_asset('page.css')}</style></head><body>",
            f"<header><h1>{escape(title)}</h1><dl class=facts>{tiles}</dl>{left_out}</header>",
            _asset(f"{kind}.html"),
            f'<script type="application/json" id="data">{as_script(data)}</script>',
            f"<script>{_asset('common.js')}\n{_asset(f'{kind}.js')}</script></body></html>\n",
        ]
    )


def as_script(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _asset(name: str) -> str:
    return (importlib.resources.files("jaxcoll.pages") / "assets" / name).read_text(
        encoding="utf-8"
    )
