"""Files as an enemy would write them: seeded mutations of good ones."""

from __future__ import annotations

import copy
import json
import random

VALUES = (
    None, True, False, 0, -1, 1, 2, 3, 2**31 - 1, 2**31, 2**48 - 1, 2**63, 2**64, 10**400, 0.5,
    1e308, "", "x", "1/0", "1/3", [], [[]], [1], [None], ["x"], {}, {"p/q": "x"}, {"a": [{}]},
)  # fmt: skip
TEXTS = (
    b"", b"{", b"[" * 100_000, b'{"a":' * 100_000, b"NaN", b"\xff\xfe", b"\x00", b"null",
    b"9" * 100_000,
)  # fmt: skip


def mutated_json(text: str, random: random.Random) -> bytes:
    """JSON text with one to three values replaced, dropped or repeated, or bytes changed."""
    way = random.randrange(10)
    if way == 0:
        return random.choice(TEXTS)
    if way == 1:
        return mutated_bytes(text.encode(), random)
    value = json.loads(text)
    for _ in range(random.randint(1, 3)):
        _mutate(value, random)
    return json.dumps(value).encode()


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
    way = random.randrange(8)
    if way == 0:
        del parent[key]
    elif way == 1 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
    elif way == 2 and isinstance(parent, dict):
        parent[f"{key}_"] = parent[key]
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
