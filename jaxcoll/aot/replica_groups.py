"""Replica groups: the devices of each group of a collective, in all notations of HLO."""

from __future__ import annotations

import re

import numpy as np

from jaxcoll.aot.hlo import Instruction
from jaxcoll.errors import FormatError

_LIST = r"\[([\d,]+)\]"
_IOTA = rf"{_LIST}(?:T\(([\d,]+)\))?"
_LISTED = re.compile(r"\{(\{[\d,]*\}(?:,\{[\d,]*\})*)?\}")
_COUNTED = re.compile(rf"{_LIST}<={_IOTA}")
_MESH = re.compile(rf"mesh\[([^\]]*)\](?:, device_ids=\({_IOTA}\))? \{{([^}}]*)\}}")


def replica_groups(instruction: Instruction, devices: int) -> np.ndarray:
    """The devices of every group of a collective, by their place in the device assignment.

    The spellings are ``{{0,1},{2,3}}``, ``{}`` for all devices, ``[4,2]<=[2,4]T(1,0)`` for
    consecutive numbers reshaped and transposed, and ``mesh['x'=2,'y'=4] {'y'}`` for lines of a
    mesh, whose devices may be given in such an order.

    Args:
        instruction: a collective that has ``replica_groups``.
        devices: of the module.

    Returns:
        Integers, shape (groups, devices of a group).

    Raises:
        FormatError: another spelling, or groups of different sizes.
    """
    start = instruction.attributes.find("replica_groups=")
    text = instruction.attributes[start + len("replica_groups=") :] if start >= 0 else "{}"
    if found := _LISTED.match(text):
        return _listed(found.group(1), devices, text)
    if found := _COUNTED.match(text):
        return _iota(found.group(2), found.group(3)).reshape(_numbers(found.group(1)))
    if (found := _MESH.match(text)) and ":" not in found.group(4):
        return _lines(*found.groups())
    raise FormatError(f"cannot read the groups of {instruction.name}: {text[:80]!r}")


def _listed(groups: str | None, devices: int, text: str) -> np.ndarray:
    if groups is None:
        return np.arange(devices)[None]
    rows = [_numbers(group) for group in re.findall(r"\{([\d,]*)\}", groups)]
    if len({len(row) for row in rows}) > 1:
        raise FormatError(f"groups of different sizes: {text[:80]!r}")
    return np.array(rows)


def _iota(shape: str, order: str | None) -> np.ndarray:
    sides = _numbers(shape)
    places = np.arange(np.prod(sides)).reshape(sides)
    return places.transpose(_numbers(order)) if order else places


def _lines(axes: str, shape: str | None, order: str | None, along: str) -> np.ndarray:
    """Devices along some axes of a mesh."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
    places = np.arange(np.prod([*sizes.values()])) if shape is None else _iota(shape, order)
    names = [*sizes]
    chosen = [names.index(name) for name in re.findall(r"'([^']+)'", along)]
    rest = [axis for axis in range(len(names)) if axis not in chosen]
    size = int(np.prod([sizes[names[axis]] for axis in chosen]))
    grid = places.reshape([*sizes.values()]).transpose(rest + chosen)
    return grid.reshape(-1, size)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
