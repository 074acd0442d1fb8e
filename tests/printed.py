"""Numbers that pages claim, beside what their code and commands print.

A claim is a number of a page, as it stands there. It holds where something printed rounds to it: by
85.66 a page claims nothing of the next digit. So the numbers stand on the page only.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

ROOT = Path(__file__).parents[1]

_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
# Around what a claim is about, in the output; and then the number of the claim.
_BEGIN, _END = "\x02", "\x03"


def numbers(text: str) -> list[str]:
    """The numbers of a text, as written; those inside of names are none."""
    return [each.rstrip(",") for each in _NUMBER.findall(text)]


def holds(claim: str, printed: str) -> bool:
    """Whether a printed number is the one that is claimed, in the digits of the claim."""
    said, found = (Decimal(each.replace(",", "")) for each in (claim, printed))
    exponent = said.as_tuple().exponent
    return isinstance(exponent, int) and abs(said - found) <= Decimal(1).scaleb(exponent) / 2


def unsaid(claimed: str, printed: str) -> list[str]:
    """The numbers of a claim that are none of those printed."""
    found = numbers(printed)
    return [each for each in numbers(claimed) if not any(holds(each, one) for one in found)]


def claimed(page: str, words: str) -> tuple[str, ...]:
    """The groups of the one place of a page whose words match, across its lines.

    Args:
        page: its path from the root.
    """
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    (found,) = re.finditer(words, text)
    return found.groups()


def assert_claimed(page: str, words: str, computed: Sequence[float]) -> None:
    """The numbers of a place of a page are those computed, in the digits that they have."""
    said = claimed(page, words)
    true = len(said) == len(computed) and all(map(holds, said, map(repr, map(float, computed))))
    assert true, f"{page} says {said}, computed {computed}"


def claims_of(code: str) -> dict[int, str]:
    """The comments with numbers of a block of code that say what it prints, by their lines.

    These are comments behind a ``print``, and those behind the assignment of a name that begin with
    the value and a colon: ``count = len(found)  # 4: one for each``.
    """
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT and numbers(token.string):
            comments[token.start[0]] = token.string.removeprefix("#").strip()
    claims = {}
    for node in ast.walk(ast.parse(code)):
        comment = comments.get(getattr(node, "end_lineno", 0), "")
        match node:
            case ast.Expr(ast.Call(ast.Name("print"))) if comment:
                claims[node.lineno] = comment
            case ast.Assign([ast.Name()]) if re.match(r"[\d.,/]+: ", comment):
                claims[node.lineno] = comment.partition(":")[0]
    return claims


def marked(code: str) -> str:
    """The same code, whose output says which part of it each claim is about."""
    lines, claims = code.split("\n"), claims_of(code)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Expr | ast.Assign) and node.lineno in claims:
            first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
            indent = " " * node.col_offset
            begin = f"{indent}print({_BEGIN + str(node.lineno) + _END!r})\n"
            end = f"\n{indent}print({_END!r})"
            if isinstance(node, ast.Assign):
                end = f"\n{indent}print({ast.unparse(node.targets[0])}){end}"
            lines[first] = begin + lines[first]
            lines[last] += end
    return "\n".join(lines)


def separated(output: str) -> tuple[str, Mapping[int, str]]:
    """What marked code printed: as by itself without the marks, and by line of the claims."""
    pattern = re.compile(f"{_BEGIN}(\\d+){_END}\n(.*?){_END}\n", re.DOTALL)
    printed = {int(line): text for line, text in pattern.findall(output)}
    return pattern.sub(r"\2", output), printed


def false_claims(code: str, printed: Mapping[int, str]) -> Iterator[str]:
    """A sentence for each claim of a block that is not what the block printed."""
    for line, claim in claims_of(code).items():
        if line in printed and (missing := unsaid(claim, printed[line])):
            source = code.split("\n")[line - 1].strip()
            yield f"{source!r} says {', '.join(missing)} and printed {printed[line]!r}"
