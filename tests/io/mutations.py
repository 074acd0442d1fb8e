"""Files as an enemy would write them: seeded mutations of good ones."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

LONG = "long" * 5_000
NESTED: list = []
for _ in range(60):
    NESTED = [NESTED]
VALUES = (
    None, True, False, 0, -1, 1, 2, 3, 2**31 - 1, 2**31, 2**48 - 1, 2**63, 2**64, 10**400, 0.5,
    1e308, "", "x", "1/0", "1/3", [], [[]], [1], [None], ["x"], {}, {"p/q": "x"}, {"a": [{}]},
    LONG, {LONG: 1}, [LONG], NESTED, "\ud800", "a\nb",
)  # fmt: skip
TEXTS = (
    b"", b"{", b"[" * 100_000, b'{"a":' * 100_000, b"NaN", b"\xff\xfe", b"\x00", b"null",
    b"9" * 100_000, b"1e999",
)  # fmt: skip
# What takes the place of a number, and of a word, of a text.
NUMBERS = (
    b"-1", b"0", b"1", b"2", b"3", b"7", b"71", b"4096", b"99999", b"2147483648", b"1e999", b"0.5",
    b"-0", b"9" * 19, b"9" * 30, b"9" * 5_000, b"x", b"",
)  # fmt: skip
WORDS = (b"", b"x", b"size", b"while", b"main", b"ring", b"#", LONG.encode(), b"\xc3\xa9")
_NUMBER = re.compile(rb"[0-9]+(?:\.[0-9]+)?")
_WORD = re.compile(rb"[A-Za-z_][\w.\-]*")
_BRACKET = re.compile(rb"[][(){}<>,:=\"']")


def mutated_json(text: str, random: random.Random) -> bytes:
    """JSON text with one to three values replaced, dropped or repeated, or bytes changed."""
    way = random.randrange(12)
    if way == 0:
        return random.choice(TEXTS)
    if way == 1:
        return mutated_bytes(text.encode(), random)
    if way == 2:
        return mutated_text(text.encode(), random)
    value = json.loads(text)
    for _ in range(random.choice((1, 1, 2, 3))):
        _mutate(value, random)
    return json.dumps(value).encode()


def mutated_text(data: bytes, random: random.Random) -> bytes:
    """Lines of text with numbers, words or brackets replaced, lines moved, or bytes changed."""
    way = random.randrange(10)
    if way == 0:
        return random.choice(TEXTS)
    if way == 1:
        return mutated_bytes(data, random)
    if way < 4:
        lines = data.split(b"\n")
        at, to = random.randrange(len(lines)), random.randrange(len(lines))
        moved = lines[:at] + lines[at + 1 :]
        moved[to:to] = lines[at : at + 1] * random.choice((0, 1, 1, 2, 3))
        return b"\n".join(moved)
    for _ in range(random.randint(1, 3)):
        what, others = random.choice(
            ((_NUMBER, NUMBERS), (_NUMBER, NUMBERS), (_WORD, WORDS), (_BRACKET, (b"", b"{", b"]")))
        )
        found = [*what.finditer(data)]
        if found:
            place = random.choice(found)
            # Another one of the text is more often understood than what no text of its kind has.
            other = random.choice((random.choice(found)[0], random.choice(others)))
            data = data[: place.start()] + other + data[place.end() :]
    return data


def with_a_long_word(data: bytes, random: random.Random) -> bytes:
    """A text with one of its words as long as a file."""
    found = [*_WORD.finditer(data)]
    place = random.choice(found)
    return (
        data[: place.start()] + random.choice((WORDS[-2], place[0] * 5_000)) + data[place.end() :]
    )


def mutated_bytes(data: bytes, random: random.Random) -> bytes:
    """Bytes cut short, made longer, or with some of them changed."""
    way = random.randrange(3)
    if way == 0:
        return data[: random.randrange(len(data) + 1)]
    if way == 1:
        return data + random.randbytes(random.randint(1, 16))
    changed = bytearray(data)
    for _ in range(random.randint(1, 8)):
        if changed:
            changed[random.randrange(len(changed))] = random.choice((0, 1, 127, 128, 255))
    return bytes(changed)


def _mutate(value, random: random.Random) -> None:
    places = list(_places(value))
    if not places:
        return
    parent, key = random.choice(places)
    way = random.randrange(14)
    if way == 0:
        del parent[key]
    elif way == 1 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
    elif way == 2 and isinstance(parent, dict):
        parent[random.choice((f"{key}_", LONG))] = parent[key]
    elif way < 8:
        # Of the same kind: read further than what no file of its kind has.
        other, place = random.choice([*_places(value)])
        parent[key] = copy.deepcopy(other[place])
    elif way < 11 and type(parent[key]) is int:
        parent[key] += random.choice((-1, 1, 1, 2))
    else:
        parent[key] = copy.deepcopy(random.choice(VALUES))


def _places(value):
    """Every (parent, key) of a JSON value, of long lists a few only."""
    if isinstance(value, dict):
        keys = list(value)
    else:
        keys = list(range(min(len(value), 4))) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from _places(value[key])


# By reader: old text, new text in all its places, and a regular expression of the error's words.
REFUSALS: dict[str, list[list[str]]] = yaml.safe_load(
    Path(__file__).with_name("refusals.yaml").read_text()
)


def refuses(
    read: Callable[[str], Any],
    error: type[Exception] | tuple[type[Exception], ...],
    text: str | Callable[[], str],
    changes: str | Sequence[tuple[str, str, str]],
) -> Callable:
    """A test that text is refused after a change, with an error of certain words.

    Args:
        text: the readable text; a function where only the test is to make it.
        changes: as those of ``REFUSALS``, or their name there.
    """
    cases = REFUSALS[changes] if isinstance(changes, str) else changes

    @pytest.mark.parametrize(("old", "new", "words"), cases)
    def refused(old: str, new: str, words: str) -> None:
        whole = text if isinstance(text, str) else text()
        assert old in whole
        with pytest.raises(error, match=words):
            read(whole.replace(old, new))

    return refused
