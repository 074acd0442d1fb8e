"""TPU slices by their names, ``v5p-128`` or ``tpu7x-4x4x4``, without the TPU compiler.

The number counts cores for v4, v5p and tpu7x, which have two per chip, and chips for v5e and v6e.
From cloud.google.com/tpu/docs (2026). A rank is a chip, even for tpu7x, whose chips are two devices
each. ``n x n x 2n`` slices of v4 and v5p also exist twisted, with other wires under the same name;
these are not supported.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.topology import Topology

# Sides that the documentation lists; larger slices of v4, v5p and tpu7x are named by their sides.
_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_CUBES = (
    (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8),
    (8, 8, 16), (8, 16, 16), (16, 16, 16), (16, 16, 24),
)  # fmt: skip
_MOST_CHIPS = 2**16
_NAME = re.compile(r"([a-z0-9]+)-([0-9]{1,6}(?:x[0-9]{1,4}){0,2})")


@dataclasses.dataclass(frozen=True)
class Generation:
    """Slices of a generation.

    Attributes:
        kind: ``device_kind`` of its devices.
        cores: cores per chip, for generations whose names count cores.
        shapes: the shapes that a number stands for.
        most: the most chips of a slice.
    """

    kind: str
    cores: int
    shapes: tuple[tuple[int, ...], ...]
    most: int


GENERATIONS: Mapping[str, Generation] = {
    "v4": Generation("TPU v4", 2, _CUBES, 4096),
    "v5litepod": Generation("TPU v5 lite", 1, _FLAT, 256),
    "v5e": Generation("TPU v5 lite", 1, _FLAT, 256),
    # The largest slice is smaller than the pod of 8960: 16x16x24.
    "v5p": Generation("TPU v5", 2, _CUBES, 6144),
    "v6e": Generation("TPU v6 lite", 1, _FLAT, 256),
    "tpu7x": Generation("TPU7x", 2, _CUBES, 9216),
}


@dataclasses.dataclass(frozen=True)
class _Chip:
    """The attributes of a TPU device that ``Topology.from_devices`` reads."""

    device_kind: str
    coords: tuple[int, ...]
    process_index: int = 0
    platform: str = "tpu"
    core_on_chip: int = 0


def network(
    kind: str, shape: tuple[int, ...], *, alpha: float | None = None, bandwidth: float | None = None
) -> Topology:
    """The network of a slice, by the library's table of devices; a rank is a chip.

    Args:
        kind: the ``device_kind`` of its chips, as ``sides`` gives it.
        shape: its sides in chips, two or three.
        alpha, bandwidth: seconds and bytes per second of all links, instead of the kind's.

    Raises:
        TopologyError: sides or numbers are out of range.
    """
    checks.text(kind, "kind", TopologyError)
    shape = checks.integers(shape, "shape", TopologyError)
    if not 1 <= len(shape) <= 3 or min(shape) < 1 or math.prod(shape) > _MOST_CHIPS:
        raise TopologyError(
            f"a slice has one to three sides and at most {_MOST_CHIPS} chips, got "
            f"{checks.shown(shape)}"
        )
    # Chips have three coordinates; in a flat generation the third is 0.
    whole = (*shape, *(1,) * (3 - len(shape)))
    chips = [_Chip(kind, at) for at in itertools.product(*map(range, whole))]
    return Topology.from_devices(chips, alpha=alpha, bandwidth=bandwidth)


def sides(name: str) -> tuple[str, tuple[int, ...]]:
    """The ``device_kind`` of a slice and its sides in chips.

    Raises:
        TopologyError: the generation is unknown; no slice has the number, and the error names the
            nearest that do; or there are too many dimensions or chips.
    """
    checks.text(name, "name", TopologyError)
    found = _NAME.fullmatch(name.lower())
    generation = GENERATIONS.get(found[1]) if found else None
    if found is None or generation is None:
        raise TopologyError(
            f"no slice is called {checks.shown(name)}; generations: {', '.join(GENERATIONS)}, as "
            "in v5p-128 or v6e-4x4"
        )
    numbers = [int(number) for number in found[2].split("x")]
    if len(numbers) > 1:
        dimensions = len(generation.shapes[0])
        if len(numbers) != dimensions or 0 in numbers or math.prod(numbers) > generation.most:
            raise TopologyError(
                f"{name}: slices of {found[1]} have {dimensions} sides and at most "
                f"{generation.most} chips"
            )
        return generation.kind, tuple(numbers)
    # A number stands for the one shape in the table with that count: v5p-128, 64 chips, is 4x4x4.
    counts = {math.prod(shape) * generation.cores: shape for shape in generation.shapes}
    counts = {n: s for n, s in counts.items() if n <= generation.most * generation.cores}
    if numbers[0] not in counts:
        near = sorted(counts, key=lambda count: abs(count - numbers[0]))[:3]
        what = "cores" if generation.cores > 1 else "chips"
        raise TopologyError(
            f"no slice of {found[1]} has {numbers[0]} {what}; the nearest are "
            f"{', '.join(map(str, sorted(near)))}; other shapes are named by their sides"
        )
    return generation.kind, counts[numbers[0]]
