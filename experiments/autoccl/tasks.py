"""What there is to tune: collectives (Tables 1 and 8) and configurations (Table 2, Fig. 2).

``tasks`` are those of a training step, from the settings of four models; ``spaces`` follow from the
parameters of NCCL.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.autoccl import MEASURED, MODELLED
from experiments.config import StudyConfig
from experiments.figures import grouped_bars, panels
from experiments.limits import Count, at_least
from experiments.study import ConfigError, Row, Rows
from jaxcoll.configurations import TABLE_2
from jaxcoll.kinds import ALL_GATHER, kind_of
from jaxcoll.tune import Space

GATHER, SCATTER, REDUCE = ALL_GATHER.name, str(ALL_GATHER.dual_name), "all_reduce"
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """A language model with the settings of Table 8."""

    layers: Count
    stages: Count  # of the pipeline ("PP")
    width: Count
    length: Count  # tokens per sequence
    samples: Count  # sequences per microbatch and replica ("MBS")
    global_samples: int  # sequences per step ("GBS")
    # tensor, replicas: ranks along each axis ("TP", "DP")
    tensor: Count
    replicas: Count
    parameters: int  # of the model; those that its replicas exchange, where there are several
    ends: Mapping[str, int]  # per kind, collectives per microbatch outside the layers of a stage
    printed: Mapping[str, int]  # the paper's number per step, by kind
    printed_mib: float  # the paper's MiB per collective of activations
    printed_data_mib: Mapping[str, float]  # the paper's MiB between replicas, by kind
    data_item_bytes: Mapping[str, int]  # bytes per parameter that replicas exchange, by kind

    def __post_init__(self) -> None:
        if self.layers % self.stages or self.global_samples % (self.samples * self.replicas):
            raise ConfigError(
                "models: layers must be a multiple of stages, and global_samples a multiple of "
                "samples times replicas"
            )

    @property
    def microbatches(self) -> int:
        """Per step: GBS / (MBS x DP)."""
        return self.global_samples // (self.samples * self.replicas)

    def per_microbatch(self, kind: str) -> int:
        """Collectives of activations: 6 all_gathers and 4 reduce_scatters per layer, and the ends.

        With sequence parallelism a layer gathers its two inputs in the forward pass, again for the
        gradients of its weights, and twice the gradients of its outputs; it scatters two sums per
        pass.
        """
        per_layer = {GATHER: 6, SCATTER: 4}[kind]
        return per_layer * (self.layers // self.stages) + self.ends[kind]


@dataclasses.dataclass(frozen=True)
class ConvolutionalConfig:
    """VGG with data parallelism, its gradients summed in buckets."""

    channels: tuple[tuple[int, ...], ...]  # of every convolution of 3 x 3, by stage
    hidden: tuple[int, ...]  # widths of the linear layers, from the flattened image to the classes
    replicas: int  # ranks ("DP")
    printed_mib: tuple[float, float]  # the paper's smallest and largest bucket
    printed_buckets: int  # the paper's number of buckets

    def gradients(self) -> list[int]:
        """Bytes of the float32 gradients, layer by layer, weights before biases."""
        widths = [3, *itertools.chain(*self.channels)]
        sizes = [9 * a * b for a, b in itertools.pairwise(widths)]
        sizes += [a * b for a, b in itertools.pairwise(self.hidden)]
        return [
            4 * n for pair in zip(sizes, [*widths[1:], *self.hidden[1:]], strict=True) for n in pair
        ]


@dataclasses.dataclass(frozen=True)
class TasksConfig(StudyConfig):
    """The table."""

    transformers: Mapping[str, TransformerConfig]  # by name
    convolutional: Mapping[str, ConvolutionalConfig]  # by name
    # first_bucket_mib, bucket_mib: capacities of the buckets of DistributedDataParallel
    first_bucket_mib: float
    bucket_mib: float


def tasks(config: TasksConfig) -> list[Row]:
    """A row per task: a collective, its size and how often a step runs it."""
    rows: list[Row] = Rows()
    for name, model in config.transformers.items():
        rows += _activations(name, model)
        rows += _replicas(name, model)
    for name, model in config.convolutional.items():
        rows += _buckets(name, model, config)
    title = "AutoCCL, Tables 1 and 8: collectives of a training step"
    return config.publish(title, rows, figure=_tasks_figure(rows))


def _activations(name: str, model: TransformerConfig) -> list[Row]:
    mib = 2 * model.samples * model.length * model.width / _MIB
    rows: list[Row] = []
    for kind in (GATHER, SCATTER):
        count = model.per_microbatch(kind)
        other = model.printed[str(kind_of(kind).dual_name)]
        # The printed numbers of the two kinds are the other way round in a column: said in the row,
        # and not mended.
        exchanged = count * model.microbatches == other != model.printed[kind]
        rows.append(
            {
                "model": name,
                "collective": kind,
                "ranks": model.tensor,
                "MiB": mib,
                "paper MiB": model.printed_mib,
                "layers": model.layers // model.stages,
                "a microbatch": count,
                "paper a microbatch": model.printed[kind] / model.microbatches,
                "microbatches": model.microbatches,
                "a step": count * model.microbatches,
                "paper a step": model.printed[kind],
                "remark": f"the paper's number of the other kind ({other})" if exchanged else None,
                "row": MODELLED,
            }
        )
    return rows


def _replicas(name: str, model: TransformerConfig) -> list[Row]:
    return [
        {
            "model": name,
            "collective": kind,
            "ranks": model.replicas,
            "MiB": model.data_item_bytes[kind] * model.parameters / model.tensor / _MIB,
            "paper MiB": printed,
            "a step": 1,
            "paper a step": 1,
            "row": MODELLED,
        }
        for kind, printed in model.printed_data_mib.items()
    ]


def _buckets(name: str, model: ConvolutionalConfig, config: TasksConfig) -> list[Row]:
    buckets = ddp_buckets(
        model.gradients(), round(config.first_bucket_mib * _MIB), round(config.bucket_mib * _MIB)
    )
    ends = dict(zip((min(buckets), max(buckets)), model.printed_mib, strict=True))
    return [
        {
            "model": name,
            "collective": REDUCE,
            "ranks": model.replicas,
            "MiB": nbytes / _MIB,
            "paper MiB": ends.get(nbytes),
            "a step": 1,
            "remark": f"bucket {i + 1} of {len(buckets)}, {model.printed_buckets} printed",
            "row": MODELLED,
        }
        for i, nbytes in enumerate(buckets)
    ]


def ddp_buckets(sizes: Sequence[int], first: int, cap: int) -> list[int]:
    """Bytes per bucket, by the rule of PyTorch's DistributedDataParallel.

    Gradients join a bucket in the reverse order of the layers, as they become ready. A bucket is
    closed as soon as it holds its capacity, which is smaller for the first one.

    Args:
        sizes: bytes per gradient, in the order of the layers.
        first, cap: capacities of the first and of all other buckets in bytes.
    """
    buckets, held, limit = [], 0, first
    for size in reversed(sizes):
        held += size
        if held >= limit:
            buckets.append(held)
            held, limit = 0, cap
    return [*buckets, held] if held else buckets


def _tasks_figure(rows: Sequence[Row]) -> Figure:
    """Bytes per step of every task."""
    bars = {
        f"{row['model']}: {row['collective']}, {row['MiB']:.4g} MiB": {
            "": float(row["MiB"] or 0) * int(row["a step"] or 0) / 1024
        }
        for row in rows
    }
    return grouped_bars({"": bars}, label="GiB per step", log=True)


_MB = 2**20


@dataclasses.dataclass(frozen=True)
class SpacesConfig(StudyConfig):
    """The table and the figure."""

    # The paper's number of values of every parameter of Table 2, in its order
    printed: tuple[int, ...]
    megabytes: tuple[int, ...]  # sizes of messages (of 2**20 bytes)
    groups: tuple[int, ...]  # numbers of ranks

    def __post_init__(self) -> None:
        if len(self.printed) != len(TABLE_2):
            raise ConfigError(f"printed must have {len(TABLE_2)} numbers, got {len(self.printed)}")
        for value in (*self.megabytes, *self.groups):
            at_least("megabytes and groups", value, 1)


def spaces(config: SpacesConfig) -> list[Row]:
    """The parameters of Table 2, the size of the space, and what of it differs for a message."""
    space = Space.nccl()
    rows: list[Row] = Rows(
        {
            "what": f"values of {parameter.name} ({parameter.kind})",
            "ours": len(parameter.values),
            "paper": printed,
            "row": MEASURED,
        }
        for parameter, printed in zip(TABLE_2, config.printed, strict=True)
    )
    rows += [
        {"what": "subspaces", "ours": len(space.subspaces), "row": MEASURED},
        {"what": "points per subspace", "ours": space.subspaces[0].size, "row": MEASURED},
        {"what": "points", "ours": space.size, "row": MEASURED},
    ]
    rows += [
        {
            "what": f"different for {megabytes} MB on {ranks} ranks",
            "MB": megabytes,
            "ranks": ranks,
            "ours": different(space, megabytes * _MB // ranks),
            "row": MODELLED,
        }
        for ranks in config.groups
        for megabytes in config.megabytes
    ]
    title = "AutoCCL, Table 2 and Fig. 2: configurations"
    return config.publish(title, rows, figure=_spaces_figure(rows, config.groups))


def different(space: Space, shard_bytes: int) -> int:
    """Points of which a step of NC chunks of C bytes is not larger than a shard.

    A larger step moves the whole shard at once, as a smaller one does: the two do not differ.
    """
    total = 0
    for subspace in space.subspaces:
        channels, threads, chunks = (np.asarray(p.values) for p in subspace.resources)
        # For each NC the largest C whose step still fits; all larger ones move the whole shard at
        # once and do not differ.
        largest = shard_bytes // channels
        total += len(threads) * int(np.searchsorted(chunks, largest, side="right").sum())
    return total


def _spaces_figure(rows: Sequence[Row], groups: Sequence[int]) -> Figure:
    lines = {
        f"{ranks} ranks": {row["MB"]: row["ours"] for row in rows if row.get("ranks") == ranks}
        for ranks in groups
    }
    return panels(
        {"": lines},  # type: ignore[arg-type]
        label_x="message (MB)",
        label_y="configurations",
        columns=1,
        in_bytes=False,
        log_y=True,
    )
