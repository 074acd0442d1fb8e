"""Replica groups: the devices of each group of a collective, in all notations of HLO, and the pairs
of a permute.
"""

from __future__ import annotations

import math
import re

import numpy as np

from jaxcoll.aot.hlo import Instruction
from jaxcoll.errors import FormatError, shown

_MOST_DIGITS, _MOST_DEVICES = 9, 2**20
_MOST_AXES = 32  # of an array
_LIST = r"\[([\d,]+)\]"
_IOTA = rf"{_LIST}(?:T\(([\d,]+)\))?"
_LISTED = re.compile(r"\{(\{[\d,]*\}(?:,\{[\d,]*\})*)?\}")
_COUNTED = re.compile(rf"{_LIST}<={_IOTA}")
_PAIRS = re.compile(r"\{(?:\{\d{1,9},\d{1,9}\}(?:,\{\d{1,9},\d{1,9}\})*)?\}")
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
        FormatError: another spelling, groups of different sizes, or numbers that do not fit
            together.
    """
    start = instruction.attributes.find("replica_groups=")
    text = instruction.attributes[start + len("replica_groups=") :] if start >= 0 else "{}"
    if found := _LISTED.match(text):
        return _listed(found.group(1), devices, text)
    if found := _COUNTED.match(text):
        return _arranged(_iota(found.group(2), found.group(3)), found.group(1), 2)
    if (found := _MESH.match(text)) and ":" not in found.group(4):
        return _lines(*found.groups())
    raise FormatError(f"cannot read the groups of {shown(instruction.name)}: {shown(text)}")


def permuted_pairs(instruction: Instruction) -> list[tuple[int, int]]:
    """The (source, target) devices of a collective-permute.

    Raises:
        FormatError: another spelling than ``{{0,1},{1,0}}``.
    """
    text = instruction.attribute("source_target_pairs") or "{}"
    if not _PAIRS.fullmatch(text):
        raise FormatError(f"cannot read the pairs of {shown(instruction.name)}: {shown(text)}")
    return [(int(a), int(b)) for a, b in re.findall(r"(\d+),(\d+)", text)]


def _listed(groups: str | None, devices: int, text: str) -> np.ndarray:
    if groups is None:
        return np.arange(devices)[None]
    rows = [_numbers(group) for group in re.findall(r"\{([\d,]*)\}", groups)]
    if len({len(row) for row in rows}) > 1 or not rows[0]:
        raise FormatError(f"groups of different sizes, or of none: {shown(text)}")
    return np.array(rows)


def _iota(shape: str, order: str | None) -> np.ndarray:
    """Consecutive numbers, reshaped and transposed."""
    sides = _numbers(shape)
    count = math.prod(sides)
    if not 1 <= count <= _MOST_DEVICES or len(sides) > _MOST_AXES:
        raise FormatError(f"groups are of 1 to {_MOST_DEVICES} devices, got {shown(shape)}")
    places = np.arange(count).reshape(sides)
    if order is None:
        return places
    axes = _numbers(order)
    if sorted(axes) != list(range(len(sides))):
        raise FormatError(f"the axes of {shown(shape)} have no order {shown(order)}")
    return places.transpose(axes)


def _arranged(places: np.ndarray, shape: str, dimensions: int) -> np.ndarray:
    """Places in a shape of as many."""
    sides = _numbers(shape)
    if len(sides) != dimensions or math.prod(sides) != places.size:
        raise FormatError(f"{places.size} devices do not have the shape {shown(shape)}")
    return places.reshape(sides)


def _lines(axes: str, shape: str | None, order: str | None, along: str) -> np.ndarray:
    """Devices along some axes of a mesh."""
    sizes = dict(re.findall(r"'([^']+)'=(\d+)", axes))
    names, sides = [*sizes], ",".join(sizes.values())
    lines = re.findall(r"'([^']+)'", along)
    if not {*lines} <= {*names} or len({*lines}) < len(lines):
        raise FormatError(f"no lines along {shown(along)} of a mesh of {shown(axes)}")
    chosen = [names.index(name) for name in lines]
    rest = [axis for axis in range(len(names)) if axis not in chosen]
    places = _iota(sides, None) if shape is None else _iota(shape, order)
    grid = _arranged(places, sides, len(names))
    size = math.prod(grid.shape[axis] for axis in chosen)
    return grid.transpose(rest + chosen).reshape(-1, size)


def _numbers(text: str) -> list[int]:
    numbers = [number for number in text.split(",") if number]
    if any(len(number) > _MOST_DIGITS for number in numbers) or len(numbers) > _MOST_DEVICES:
        raise FormatError(f"no devices are called {shown(text)}")
    return [int(number) for number in numbers]
