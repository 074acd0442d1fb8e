"""Configurations of experiments: frozen dataclasses, put together from ``configs/`` by Hydra.

Which experiments there are, and their configurations: Hydra puts together mappings, which are
checked and made into a frozen dataclass, its values within the limits that their types state
(``limits.py``); behind this file and ``__main__`` nothing knows Hydra.

Sweeps go on where they were stopped. A run leaves its configuration beside its results when it has
ended. The same sweep in the same folder (``hydra.sweep.dir=FOLDER``) skips runs whose configuration
is found there. When all jobs of a sweep have ended, ``rows.csv`` in its folder holds the rows of
all, with the overrides of each.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import functools
import io
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments import (
    autoccl,
    collbench,
    direct_connect,
    forestcoll,
    multitree,
    tacos,
    tensorstate,
    wires,
)
from experiments.limits import Count, LinkModelName, Natural, NotNegative, Positive, among, one_of
from experiments.study import ConfigError, Experiment, Row, publish, write_csv
from jaxcoll.io.files import read_text, write_text
from jaxcoll.synth import SYNTHESIZERS


@dataclasses.dataclass(frozen=True)
class StudyConfig:
    """The fields that the configurations of all studies have."""

    size: str  # the preset, "ci" or "paper"
    notes: tuple[str, ...]  # differences from the paper, and settings that it does not give
    results: Path  # folder to write to

    def publish(
        self,
        title: str,
        rows: Sequence[Row],
        *,
        figure: Figure | None = None,
        remarks: Sequence[str] = (),
    ) -> list[Any]:
        """Prints and writes the rows with the study's notes, as ``study.publish``; returns them."""
        publish(title, rows, self.results, figure=figure, notes=self.notes, remarks=remarks)
        return list(rows)


@dataclasses.dataclass(frozen=True)
class TopologyConfig:
    """A network of one of the families of ``jaxcoll.topologies``."""

    FAMILIES: typing.ClassVar = ("torus", "mesh", "ring", "fully_connected")

    family: str  # one of ``FAMILIES``
    sides: tuple[int, ...]  # ranks along each dimension; a single one for ring and fully_connected

    def __post_init__(self) -> None:
        one_of("topology.family", self.family, self.FAMILIES)
        if not self.sides or min(self.sides) < 1:
            raise ConfigError(f"topology.sides must be integers of at least 1, got {self.sides}")
        if self.family in ("ring", "fully_connected") and len(self.sides) != 1:
            raise ConfigError(f"topology.sides of a {self.family} is one number, got {self.sides}")

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return math.prod(self.sides)


@dataclasses.dataclass(frozen=True)
class HardwareConfig:
    """Devices to run on, and the links to plan for."""

    # Of the devices: "cpu" for virtual ones, as many as there are ranks
    platform: Annotated[str, among(("cpu", "gpu", "tpu"))]
    alpha_us: NotNegative  # latency of a link in microseconds
    bandwidth_gbps: Positive  # bandwidth of a link in GB/s


@dataclasses.dataclass(frozen=True)
class SynthConfig:
    """Which synthesizers are run, and with how many chunks per shard."""

    names: tuple[str, ...]  # of the synthesizers; all that there are where empty
    chosen: tuple[str, ...]  # those whose chunks ``jc.synthesize`` chooses for every size
    chunks: tuple[int, ...]  # for others without an entry of their own
    chunks_of: Mapping[str, tuple[int, ...]]  # by name of the synthesizer

    def __post_init__(self) -> None:
        unknown = sorted({*self.names, *self.chosen, *self.chunks_of} - SYNTHESIZERS.keys())
        if unknown:
            raise ConfigError(
                f"synth names {unknown[0]!r}, which is not a synthesizer; known: "
                f"{', '.join(SYNTHESIZERS)}"
            )
        for name, counts in {"": self.chunks, **self.chunks_of}.items():
            if not counts or min(counts) < 1:
                where = f"synth.chunks_of.{name}" if name else "synth.chunks"
                raise ConfigError(f"{where} must be integers of at least 1, got {counts}")

    def of(self, name: str) -> tuple[int, ...]:
        """Chunks a shard to run a synthesizer with."""
        return self.chunks_of.get(name, self.chunks)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A data-parallel training run, and what passes."""

    steps: Count
    batch: Count  # digits a step, of all ranks together
    hidden: tuple[int, ...]  # width of each hidden layer
    learning_rate: Positive  # of Adam
    bucket_bytes: Count  # gradients of several leaves are reduced together up to this many bytes
    loss_tolerance: NotNegative  # largest difference in the loss of any step between the two runs
    accuracy_tolerance: NotNegative  # largest difference in held-out accuracy after any step
    accuracy_wanted: NotNegative  # held-out accuracy to beat

    def __post_init__(self) -> None:
        if any(width < 1 for width in self.hidden):
            raise ConfigError(f"train.hidden must be integers of at least 1, got {self.hidden}")


@dataclasses.dataclass(frozen=True)
class QuickstartConfig:
    """The quickstart."""

    topology: TopologyConfig
    hardware: HardwareConfig
    synth: SynthConfig
    train: TrainConfig
    sizes: tuple[int, ...]  # bytes of a rank's buffer to simulate
    link_model: LinkModelName
    elements: Count  # size of the arrays that are summed on devices
    seed: Natural
    results: Path  # folder to write to

    @property
    def devices(self) -> tuple[str, int]:
        """Platform and number of the devices to run on."""
        return self.hardware.platform, self.topology.num_ranks

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ConfigError(f"sizes must be bytes of at least 1, got {self.sizes}")
        if sorted(set(self.sizes)) != list(self.sizes):
            raise ConfigError(f"sizes must rise, got {self.sizes}")
        if self.topology.num_ranks < 2:
            raise ConfigError("topology.sides must make at least two ranks, got one")
        if self.train.batch % self.topology.num_ranks:
            raise ConfigError(
                f"train.batch must be a multiple of the {self.topology.num_ranks} ranks, got "
                f"{self.train.batch}"
            )


# ---------------------------------------------------------------------- from mappings


def build(kind: type, values: object, where: str = "") -> typing.Any:
    """A dataclass from nested mappings and lists, as YAML has them.

    Raises:
        ConfigError: a key too many or missing, or a value of another type, named with its place;
            or values that the dataclass itself refuses.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where or 'the configuration'} must be a mapping, got {values!r}")
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [field.name for field in dataclasses.fields(kind)]
    unknown = [key for key in values if key not in fields]
    if unknown:
        raise ConfigError(f"unknown {_place(where, unknown[0])}; known: {', '.join(fields)}")
    missing = [name for name in fields if name not in values]
    if missing:
        raise ConfigError(f"{_place(where, missing[0])} is missing")
    return kind(
        **{name: _convert(hints[name], values[name], _place(where, name)) for name in fields}
    )


def _convert(kind: typing.Any, value: object, where: str) -> object:
    if dataclasses.is_dataclass(kind):
        return build(typing.cast(type, kind), value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:  # a type with limits, as those of experiments.limits
        kind, *limits = arguments
        converted = _convert(kind, value, where)
        for check in limits:
            check(where, converted)
        return converted
    if origin is types.UnionType:  # "X | None", null in YAML
        return None if value is None else _convert(arguments[0], value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} must be a list, got {value!r}")
        return tuple(_convert(arguments[0], item, where) for item in value)
    if origin is Mapping:
        if not isinstance(value, dict):
            raise ConfigError(f"{where} must be a mapping, got {value!r}")
        items = {
            str(key): _convert(arguments[1], item, _place(where, key))
            for key, item in value.items()
        }
        return types.MappingProxyType(items)
    # YAML writes 1 for 1.0. A bool is an int to Python, and is refused where a number is asked for.
    accepted = {float: (int, float), Path: (str, Path)}.get(kind, (kind,))
    if not isinstance(value, accepted) or isinstance(value, bool) != (kind is bool):
        raise ConfigError(f"{where} must be {_NAMES[kind]}, got {value!r}")
    return kind(value)


_NAMES = {int: "an integer", float: "a number", str: "text", Path: "a path", bool: "true or false"}


def _place(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


# ---------------------------------------------------------------------- numbers that a paper prints


IDEAL = "ideal"  # in the place of an algorithm: percent of what no algorithm can beat


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperValue:
    """A number that a paper prints; studies add what it is of."""

    paper: Positive

    def beside(self, ours: float | None, column: str = "") -> dict[str, Any]:
        """Two columns of a row: our number, None where we have none, and the paper's."""
        if not column:
            return {"ours": ours, "paper": self.paper}
        return {column: ours, f"paper {column}": self.paper}


CONFIGS = Path(__file__).parents[1] / "configs"
ROOT = "config"  # the file there that lists the groups

# The presets of a study: small enough for a test of seconds, or as large as in the paper.
SIZES = ("ci", "paper")

EXPERIMENTS = {
    "quickstart": Experiment("quickstart.quickstart", "config:QuickstartConfig"),
    **tacos.EXPERIMENTS,
    **multitree.EXPERIMENTS,
    **forestcoll.EXPERIMENTS,
    **direct_connect.EXPERIMENTS,
    **tensorstate.EXPERIMENTS,
    **autoccl.EXPERIMENTS,
    **wires.EXPERIMENTS,
    **collbench.EXPERIMENTS,
}


def configure(arguments: Sequence[str]) -> tuple[str, Any]:
    """The experiment's name and configuration from ``experiment=NAME key=value ...``.

    The entries of ``configs/experiment/NAME.yaml`` come first, then those of the size in
    ``configs/preset/NAME/SIZE.yaml``, then the arguments.

    Raises:
        ConfigError: no such experiment, key, size or value.
    """
    name, size = "", SIZES[0]
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise ConfigError(f"arguments are key=value, got {argument!r}")
        name = value if key == "experiment" else name
        size = value if key == "size" else size
    if name not in EXPERIMENTS:
        given = f"there is no experiment {name!r}" if name else "which experiment? experiment=NAME"
        keys = [argument.partition("=")[0] for argument in arguments]
        near = difflib.get_close_matches("experiment", keys, n=1)
        if near and "experiment" not in keys:
            raise ConfigError(f"there is no key {near[0]!r}; did you mean experiment?")
        raise ConfigError(f"{given}; {meant(name, EXPERIMENTS)}")
    sizes = presets(name)
    if size not in (sizes or SIZES[:1]):
        known = f"known: {', '.join(sizes)}" if sizes else f"{name} has one size only"
        raise ConfigError(f"unknown size {size!r}; {known}")
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            composed = compose(ROOT, overrides=list(arguments))
        return name, checked(name, composed)
    except (HydraException, OmegaConfBaseException) as error:
        text, _, _ = str(error).partition("Config search path")
        if (found := re.match(r"Could not override '([\w.]+)'", text)) is not None:
            text = f"{name} has no key {found[1]!r}; {_instead(found[1], name)}"
        raise ConfigError(" ".join(text.split())) from error


def _instead(key: str, name: str) -> str:
    """What may have been meant by a key that an experiment does not have."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        place: Any = compose(ROOT, overrides=[f"experiment={name}"])
    before, known = "", ["experiment"]
    for part in key.split("."):
        known += [before + str(each) for each in place] if isinstance(place, DictConfig) else []
        if before + part not in known:
            return meant(before + part, known)
        place, before, known = place[part], f"{before}{part}.", []
    return meant(key, known)


def meant(word: str, known: Iterable[str]) -> str:
    """For refusals: the known words that are near to one, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.7)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"


# Hydra reads some twenty files for a configuration, and pages and records ask for each of them
# several times.
@functools.lru_cache(maxsize=512)
def configuration(name: str, size: str) -> Any:
    """The configuration of a study in one of its sizes, as it was when a process first asked."""
    return configure([f"experiment={name}", f"size={size}"])[1]


def presets(name: str) -> list[str]:
    """The sizes that an experiment has a preset for; none if it has a single size."""
    return sorted(path.stem for path in (CONFIGS / "preset" / name).glob("*.yaml"))


def checked(name: str, composed: DictConfig) -> Any:
    """The configuration of an experiment as its frozen dataclass.

    Raises:
        ConfigError: an entry is missing, unknown or of another type.
    """
    values = typing.cast(
        dict[str, Any], OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    )
    made = EXPERIMENTS[name].load_config()
    if not presets(name):
        if issubclass(made, StudyConfig):
            files = " and ".join(f"configs/preset/{name}/{size}.yaml" for size in SIZES)
            raise ConfigError(f"{name} is a study, which has two sizes: write {files}")
        del values["size"]
    return build(made, values)


ENDED, ROWS = "ended.yaml", "rows.csv"


def has_ended(composed: DictConfig, folder: Path) -> bool:
    """Whether a run of this configuration has ended in a folder."""
    path = folder / ENDED
    return path.is_file() and read_text(path) == _said(composed)


def mark_ended(composed: DictConfig, folder: Path) -> None:
    """Note that a run of this configuration has ended in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / ENDED, _said(composed))


def _said(composed: DictConfig) -> str:
    return OmegaConf.to_yaml(composed, resolve=True)


class Gather(Callback):
    """Writes the rows of all runs of a sweep to one table, once its jobs have ended."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra where the sweep was started, whatever its launcher."""
        gather(Path(config.hydra.sweep.dir))


def gather(folder: Path) -> None:
    """Write ``rows.csv`` of a sweep: the rows of its runs in their order, overrides first."""
    rows: list[dict[str, str]] = []
    runs = [path for path in folder.iterdir() if path.name.isdigit() and (path / ROWS).is_file()]
    for run in sorted(runs, key=lambda path: int(path.name)):
        given = OmegaConf.to_container(OmegaConf.load(run / ".hydra" / "overrides.yaml"))
        overrides = dict(str(each).split("=", 1) for each in given)  # type: ignore[union-attr]
        for row in csv.DictReader(io.StringIO(read_text(run / ROWS))):
            rows.append({**overrides, **row})
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write_csv(folder / ROWS, columns, rows)
