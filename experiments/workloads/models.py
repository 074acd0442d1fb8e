"""The networks and accelerators of the papers, and the times of the collectives that they wait for.

Networks (of layers) and accelerators are read from their tables in ``configs/``. The time of a
collective comes from a schedule, which is simulated once for every size that is asked for.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import yaml

import jaxcoll as jc
from experiments.config import build
from experiments.limits import above, at_least, one_of
from experiments.study import ConfigError
from experiments.workloads.shapes import SHAPES, Product, Shape
from jaxcoll.collective import Collective
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import Framing
from jaxcoll.synth import Synthesizer
from jaxcoll.topology import Topology

# Seconds of a collective of so many bytes.
Time = Callable[[int], Fraction]
Groups = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Simulated:
    """The time of a synthesizer's all-reduce on a network, at any size.

    ``jaxcoll.simulation`` stores messages and forwards them. Where messages cross several links and
    the network cuts through, they are cut into ``pieces`` that follow one another: as many, in
    powers of two, as leave each at least one packet. Ranks, too, pass a piece on before the next
    has come, which hides some latency.
    """

    topology: Topology
    synthesizer: str | Synthesizer  # an algorithm with its hyperparameters, or its name
    chunks: int = 1  # chunks per shard; times the pieces
    groups: Groups | None = None  # that run at the same time; all ranks when None
    model: str = "astra"  # the link model
    framing: Framing | None = None  # heads that cost bandwidth
    pieces: int = 1  # most pieces of a message
    seed: int = 0  # of the synthesizer
    _schedules: dict[int, Schedule] = dataclasses.field(default_factory=dict, repr=False)
    _times: dict[int, Fraction] = dataclasses.field(default_factory=dict, repr=False)

    def __call__(self, nbytes: int) -> Fraction:
        """Seconds of the all-reduce of ``nbytes``, exact."""
        if nbytes not in self._times:
            schedule = self.schedule(self._pieces_at(nbytes))
            timeline = jc.simulate(schedule, nbytes, self.model, self.framing)
            self._times[nbytes] = timeline.exact_time
        return self._times[nbytes]

    def schedule(self, pieces: int = 1) -> Schedule:
        """The schedule, with every message in so many pieces."""
        if pieces not in self._schedules:
            schedule = jc.synthesize(
                self.topology,
                "all_reduce",
                self.synthesizer,
                chunks=self.chunks * pieces,
                groups=self.groups,
                seed=self.seed,
            )
            self._schedules[pieces] = cut_through(schedule, pieces)
        return self._schedules[pieces]

    def _pieces_at(self, nbytes: int) -> int:
        if self.pieces == 1:
            return 1
        payload = (self.framing or Framing()).payload or Framing().payload or 1
        ranks = max(map(len, self.groups)) if self.groups else self.topology.num_ranks
        # A piece of less than a packet would pay for a head of its own and hide nothing more.
        packets = nbytes // (ranks * self.chunks * payload)
        return 1 << min(max(packets, 1), self.pieces).bit_length() - 1


def cut_through(schedule: Schedule, pieces: int) -> Schedule:
    """The schedule with every step in so many, each with a part of every shard's chunks."""
    if pieces == 1:
        return schedule
    per_shard = schedule.collective.chunks_per_shard
    # The chunks of a shard are shared out to the pieces in order, so that a piece of every shard
    # leaves together and the next follows it over the same links.
    piece = schedule.chunk.astype(np.int64) % per_shard * pieces // per_shard
    return Schedule.from_sends(
        schedule.topology,
        schedule.collective,
        schedule.step * np.int64(pieces) + piece,
        schedule.edge,
        schedule.chunk,
        schedule.reduce,
        edges=schedule.edges,
        provenance=schedule.provenance,
    )


def fastest(times: Sequence[Time]) -> Time:
    """The least of several at every size, as of a library that is tuned."""
    return lambda nbytes: min(time(nbytes) for time in times)


def in_turn(first: Sequence[Time], second: Sequence[Time], parts: int = 2) -> Time:
    """Collectives of equal parts of the data at the same time, then others.

    Those that run together must not share links.
    """

    def seconds(nbytes: int) -> Fraction:
        part = -(-nbytes // parts)
        return max(time(part) for time in first) + max(time(part) for time in second)

    return seconds


def ideal(topology: Topology, groups: Groups | None = None) -> Time:
    """The TACOS paper's Ideal of an all-reduce (``jaxcoll.bounds.ideal``)."""
    collective = Collective("all_reduce", topology.num_ranks, 1, groups)  # type: ignore[arg-type]
    return lambda nbytes: jc.bounds.ideal(topology, collective, nbytes)


CONFIGS = Path(__file__).parents[2] / "configs"


def names_in(folder: Path) -> tuple[str, ...]:
    """The names of a folder's tables."""
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def read_yaml(folder: Path, name: str) -> dict[str, Any]:
    """The mapping that a table holds, by safe load.

    Raises:
        ConfigError: no such table, or one that is not a mapping.
    """
    known = names_in(folder)
    if name not in known:
        raise ConfigError(f"there is no {folder.name} {name!r}; known: {', '.join(known)}")
    try:
        values = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{folder.name}/{name}.yaml: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{folder.name}/{name}.yaml must hold a mapping, got {values!r}")
    return values


# ---------------------------------------------------------------------- accelerators


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
    """

    # rows, columns: of an array
    rows: int
    columns: int
    arrays: int  # arrays of an accelerator
    clock_ghz: float  # cycles per nanosecond

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
    """Products at a share of the peak rate."""

    tflops: float  # peak, in 10**12 multiplications and additions a second
    efficiency: float  # share of it that is reached, above 0 and at most 1

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


# ---------------------------------------------------------------------- networks


FOLDER = CONFIGS / "workload"
PARALLELISM = ("data", "model", "hybrid")


@dataclasses.dataclass(frozen=True)
class Row:
    """A layer of a model."""

    name: str  # its name in the table
    shape: Shape  # its shape, which gives its products
    # "data": every rank has all weights and samples of its own; "model": the weights are shared
    # out, and activations are exchanged; "hybrid": groups of ranks that share out the weights, each
    # with samples of its own
    parallelism: str
    tied: bool = False  # whether its weights are those of a layer listed elsewhere

    @property
    def parameters(self) -> int:
        """Weights of its own."""
        return 0 if self.tied else self.shape.parameters


@dataclasses.dataclass(frozen=True)
class Model:
    """A network's layers, first to last."""

    name: str  # for tables and figures
    source: str  # where the shapes are from
    rows: tuple[Row, ...]

    @property
    def parameters(self) -> int:
        """Weights of all layers; biases and normalization are left out of the tables."""
        return sum(row.parameters for row in self.rows)


def known_models() -> tuple[str, ...]:
    """The names that ``load_model`` takes."""
    return names_in(FOLDER)


def load_model(name: str, folder: Path = FOLDER) -> Model:
    """The model of ``configs/workload/NAME.yaml``.

    A layer of the table is a mapping with a ``name`` and one kind of shape with its numbers, in the
    order of the fields in ``shapes``; a ``parallelism`` of its own where it differs from that of
    the table; and ``tied: true`` where its weights are counted elsewhere. ``repeat`` and ``layers``
    stand for a list of layers several times over.

    Raises:
        ConfigError: no such table, or an entry that cannot be, named with its place.
    """
    values = read_yaml(folder, name)
    unknown = sorted(values.keys() - {"name", "source", "parallelism", "layers"})
    if unknown:
        raise ConfigError(f"{name}: unknown key {unknown[0]!r}")
    missing = sorted({"name", "source", "layers"} - values.keys())
    if missing:
        raise ConfigError(f"{name}: {missing[0]} is missing")
    default = values.get("parallelism", "data")
    one_of(f"{name}.parallelism", default, PARALLELISM)
    rows = tuple(_rows(values["layers"], default, f"{name}.layers"))
    if not rows:
        raise ConfigError(f"{name}: a model needs at least one layer")
    return Model(str(values["name"]), " ".join(str(values["source"]).split()), rows)


def _rows(entries: Any, parallelism: str, where: str) -> Iterator[Row]:
    if not isinstance(entries, list):
        raise ConfigError(f"{where} must be a list of layers, got {entries!r}")
    for place, entry in enumerate(entries):
        here = f"{where}[{place}]"
        if not isinstance(entry, dict):
            raise ConfigError(f"{here} must be a mapping, got {entry!r}")
        if "repeat" in entry:
            times = entry["repeat"]
            if set(entry) != {"repeat", "layers"} or not isinstance(times, int) or times < 1:
                raise ConfigError(f"{here}: repeat is an integer of at least 1, with layers only")
            for _ in range(times):
                yield from _rows(entry["layers"], parallelism, f"{here}.layers")
            continue
        yield _row(entry, parallelism, here)


def _row(entry: dict[str, Any], parallelism: str, here: str) -> Row:
    kinds = [key for key in entry if key in SHAPES]
    others = entry.keys() - {*kinds, "name", "parallelism", "tied"}
    if len(kinds) != 1 or others or "name" not in entry:
        raise ConfigError(
            f"{here} needs a name and one of {', '.join(SHAPES)}, got {', '.join(map(str, entry))}"
        )
    kind = SHAPES[kinds[0]]
    fields = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    numbers = entry[kind.key]
    if not isinstance(numbers, list) or len(numbers) != len(fields):
        raise ConfigError(f"{here}.{kind.key} is a list of {', '.join(fields)}, got {numbers!r}")
    try:
        shape = kind(*numbers)
    except ValueError as error:
        raise ConfigError(f"{here}.{kind.key}: {error}") from None
    chosen, tied = entry.get("parallelism", parallelism), entry.get("tied", False)
    one_of(f"{here}.parallelism", chosen, PARALLELISM)
    if not isinstance(tied, bool):
        raise ConfigError(f"{here}.tied must be true or false, got {tied!r}")
    return Row(str(entry["name"]), shape, chosen, tied)
