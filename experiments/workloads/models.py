"""Models: tables of layers by their shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.config import one_of
from experiments.errors import ConfigError
from experiments.workloads.config_tables import CONFIGS, names_in, read_yaml
from experiments.workloads.shapes import SHAPES, Shape

FOLDER = CONFIGS / "workload"
PARALLELISM = ("data", "model", "hybrid")


@dataclasses.dataclass(frozen=True)
class Row:
    """A layer of a model.

    Attributes:
        name: its name in the table.
        shape: its shape, which gives its products.
        parallelism: "data": every rank has all weights and samples of its own; "model": the
            weights are shared out, and activations are exchanged; "hybrid": groups of ranks that
            share out the weights, each with samples of its own.
        tied: whether its weights are those of a layer listed elsewhere.
    """

    name: str
    shape: Shape
    parallelism: str
    tied: bool = False

    @property
    def parameters(self) -> int:
        """Weights of its own."""
        return 0 if self.tied else self.shape.parameters


@dataclasses.dataclass(frozen=True)
class Model:
    """A network's layers, first to last.

    Attributes:
        name: for tables and figures.
        source: where the shapes are from.
        rows: the layers.
    """

    name: str
    source: str
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
