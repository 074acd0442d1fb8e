"""Accelerators: how long a rank takes for matrix products."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable
from fractions import Fraction
from typing import ClassVar

from experiments.config import above, at_least, build
from experiments.errors import ConfigError
from experiments.workloads.config_tables import CONFIGS, read_yaml
from experiments.workloads.shapes import Product
from jaxcoll.numerics.rational import as_fraction


class Accelerator(abc.ABC):
    """A model of the hardware that computes a layer: a frozen dataclass.

    Attributes:
        key: its name as ``kind`` in the tables.
    """

    key: ClassVar[str]

    @abc.abstractmethod
    def seconds(self, products: Iterable[Product], samples: int, ranks: int = 1) -> Fraction:
        """Seconds for the products of ``samples`` samples, shared out to ``ranks`` ranks."""


@dataclasses.dataclass(frozen=True)
class Systolic(Accelerator):
    """Output-stationary systolic arrays that take one sample each.

    An array of R x C keeps R x C results in place at a time; an m x k x n product takes
    ceil(m / R) x ceil(n / C) such folds of ``2R + C + k - 2`` cycles: k for the sums, the rest for
    operands and results to pass through the array (Samajdar et al., "A systematic methodology for
    characterizing scalability of DNN accelerators using SCALE-Sim", ISPASS 2020, its analytical
    model, where k is the T of the output-stationary dataflow). Memory never holds it up (MultiTree,
    Sec. V-A).

    MultiTree trains with as many samples a rank as there are arrays (Sec. V-B), so a pass over a
    batch takes as long as one sample on one array; sums over the samples are not counted.

    Attributes:
        rows, columns: of an array.
        arrays: arrays of an accelerator.
        clock_ghz: cycles per nanosecond.
    """

    rows: int
    columns: int
    arrays: int
    clock_ghz: float

    key: ClassVar[str] = "systolic"

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "arrays"):
            at_least(name, getattr(self, name), 1)
        above("clock_ghz", self.clock_ghz, 0)

    def cycles(self, product: Product) -> int:
        """Cycles of one product on one array."""
        folds = -(-product.m // self.rows) * -(-product.n // self.columns)
        return folds * (2 * self.rows + self.columns + product.k - 2)

    def seconds(self, products: Iterable[Product], samples: int, ranks: int = 1) -> Fraction:
        """Seconds of the samples, as many at a time as there are arrays."""
        rounds = -(-samples // self.arrays)
        cycles = sum(self.cycles(product) for product in products)
        return Fraction(rounds * cycles, ranks) / (as_fraction(self.clock_ghz) * 10**9)


@dataclasses.dataclass(frozen=True)
class Flops(Accelerator):
    """Products at a share of the peak rate.

    Attributes:
        tflops: peak, in 10**12 multiplications and additions a second.
        efficiency: share of it that is reached, above 0 and at most 1.
    """

    tflops: float
    efficiency: float

    key: ClassVar[str] = "flops"

    def __post_init__(self) -> None:
        above("tflops", self.tflops, 0)
        above("efficiency", self.efficiency, 0)
        if self.efficiency > 1:
            raise ConfigError(f"efficiency must be at most 1, got {self.efficiency}")

    def seconds(self, products: Iterable[Product], samples: int, ranks: int = 1) -> Fraction:
        """Operations over rate."""
        flops = samples * sum(product.flops for product in products)
        rate = as_fraction(self.tflops) * 10**12 * as_fraction(self.efficiency)
        return Fraction(flops, ranks) / rate


KINDS: dict[str, type[Accelerator]] = {kind.key: kind for kind in (Systolic, Flops)}


def load_accelerator(name: str) -> Accelerator:
    """The accelerator of ``configs/accelerator/NAME.yaml``.

    Raises:
        ConfigError: no such file, an unknown kind, or a value that cannot be.
    """
    values = read_yaml(CONFIGS / "accelerator", name)
    kind = values.pop("kind", None)
    if kind not in KINDS:
        raise ConfigError(f"{name}: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    values.pop("source", None)
    return build(KINDS[kind], values)
