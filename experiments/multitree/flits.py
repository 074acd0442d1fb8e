"""MultiTree's flow control (Fig. 2, Fig. 8, Table II), and training time on its torus (Fig. 11).

A link carries flits. A packet is a head flit, body flits and a tail flit; a gradient sent as one
message is a train of sub-packets behind a single head flit (Sec. IV-B). Training times are of seven
networks, with what ways of overlap hide.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

from experiments.config import StudyConfig
from experiments.figures import panels, stacked_bars
from experiments.limits import Count, among, one_of, rising
from experiments.multitree.allreduces import LABELS, algorithms, torus
from experiments.study import ConfigError, Rows
from experiments.workloads import (
    Overlap,
    Workload,
    iteration,
    load_accelerator,
    load_model,
    workload,
)
from experiments.workloads import training_time as shared
from experiments.workloads.models import known_models
from jaxcoll import topologies
from jaxcoll.collective import Collective
from jaxcoll.schedule import Schedule
from jaxcoll.synth import MultiTree

FLIT_BYTES = 16  # Sec. II-D
# Table II: the type field of a flit, three bits; the first tells a sub-packet from a packet.
CODES: Mapping[tuple[str, str], int] = {
    ("packet", "head"): 0b000,
    ("packet", "body"): 0b001,
    ("packet", "tail"): 0b010,
    ("packet", "head and tail"): 0b011,
    ("sub-packet", "head"): 0b100,
    ("sub-packet", "body"): 0b101,
    ("sub-packet", "sub-tail"): 0b110,
    ("sub-packet", "tail"): 0b111,
}
VC_BITS, TYPE_BITS = 2, 3  # Fig. 8a; four virtual channels (Table III) and the codes of Table II
PORTS = 5  # of a router: four neighbours and its own rank


def packets(nbytes: int, payload: int) -> list[int]:
    """Codes of the flits of a message in packets of ``payload`` bytes, each behind a head.

    The head holds no payload, as the paper counts in Fig. 2.
    """
    found = []
    for at in range(0, nbytes, payload):
        body = -(-min(payload, nbytes - at) // FLIT_BYTES)
        # A head for every packet is what Fig. 2 counts; sub-packets share one.
        found.append(CODES["packet", "head"])
        found += [CODES["packet", "body"]] * (body - 1) + [CODES["packet", "tail"]]
    return found


def sub_packets(nbytes: int, payload: int) -> list[int]:
    """Codes of the flits of one message: a head, sub-packets that end in a sub-tail, a tail."""
    found = [CODES["sub-packet", "head"]]
    for at in range(0, nbytes, payload):
        body = -(-min(payload, nbytes - at) // FLIT_BYTES)
        last = "tail" if at + payload >= nbytes else "sub-tail"
        found += [CODES["sub-packet", "body"]] * (body - 1) + [CODES["sub-packet", last]]
    return found


def head_bits(ranks: int) -> dict[str, int]:
    """Bits of the fields of a head flit on a torus of so many ranks (Fig. 8)."""
    rank, port = _bits(ranks), _bits(PORTS)
    return {
        "VC": VC_BITS,
        "Type": TYPE_BITS,
        "Dest": rank,
        "Src": rank,
        "Next": port,
        "Eject": port,
        "Tree ID": rank,
        "Route Info": 2 * port,
        "Tree Info": rank,
        "Packet Info": max(2 * rank, 2 * port + rank),
    }


def _bits(values: int) -> int:
    """Bits to tell so many values apart."""
    return max(1, (values - 1).bit_length())


@dataclasses.dataclass(frozen=True)
class Head:
    """The Packet Info of a sub-packet's head: to which port it is sent, and of which tree it is."""

    next_port: int
    eject_port: int
    tree: int

    def encode(self, ranks: int) -> int:
        """The field as a number of ``head_bits(ranks)["Packet Info"]`` bits."""
        bits = head_bits(ranks)
        return (self.next_port << bits["Eject"] | self.eject_port) << bits["Tree ID"] | self.tree

    @classmethod
    def decode(cls, field: int, ranks: int) -> Head:
        """The head that a field encodes."""
        bits = head_bits(ranks)
        # The fields in the order in which ``encode`` has shifted them: next port, eject port, tree.
        ports, tree = divmod(field, 1 << bits["Tree ID"])
        return cls(*divmod(ports, 1 << bits["Eject"]), tree)


def heads(schedule: Schedule, sides: tuple[int, int]) -> list[tuple[int, int, Head]]:
    """Source, destination and head of every send of a schedule on a torus, one tree per shard."""
    owner = schedule.collective.owner
    found = []
    for u, v, chunk in zip(schedule.src, schedule.dst, schedule.chunk, strict=True):
        found.append((int(u), int(v), Head(_port(int(u), int(v), sides), 0, int(owner[chunk]))))
    return found


def _port(u: int, v: int, sides: tuple[int, int]) -> int:
    """The port of u's router to its neighbour v: 0 is the rank's own."""
    return 1 + _neighbours(u, sides).index(v)


def _neighbours(u: int, sides: tuple[int, int]) -> list[int]:
    rows, columns = sides
    row, column = divmod(u, columns)
    places = [(row, column + 1), (row, column - 1), (row + 1, column), (row - 1, column)]
    return [(r % rows) * columns + c % columns for r, c in places]


def followed(u: int, head: Head, sides: tuple[int, int]) -> int:
    """The rank that a router sends a flit with this head to."""
    return _neighbours(u, sides)[head.next_port - 1]


# ---------------------------------------------------------------------- the studies


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """Settings of all three."""

    payloads: tuple[int, ...]  # bytes of packets, rising
    nbytes: Count  # of a message
    paper: Mapping[str, float]  # the paper's percent of overhead, by payload
    sides: tuple[int, ...]  # of square tori whose head flits are laid out, rising
    paper_bits: Mapping[str, int]  # bits of the fields on the smallest network in the paper

    def __post_init__(self) -> None:
        rising("payloads", self.payloads)
        rising("sides", self.sides)
        if any(payload % FLIT_BYTES or payload < FLIT_BYTES for payload in self.payloads):
            raise ConfigError(f"payloads must be whole flits of {FLIT_BYTES}, got {self.payloads}")
        if self.sides[0] < 3:
            raise ConfigError(
                f"sides must begin at 3, where all neighbours of a router differ, got {self.sides}"
            )


def run(config: Config) -> list[dict[str, Any]]:
    """Rows of Fig. 2, of Table II and of Fig. 8."""
    rows = Rows([*overhead(config), *codes(config), *fields(config)])
    curves = {
        flow: {row["payload B"]: row["heads %"] for row in rows if row.get("flow control") == flow}
        for flow in ("packets", "one message")
    }
    figure = panels(
        {f"a message of {config.nbytes} bytes": curves},
        label_x="payload of a packet (bytes)",
        label_y="bandwidth that heads take (% of the payload)",
        columns=1,
        in_bytes=False,
    )
    title = "MultiTree, Fig. 2 and 8, Table II: flits of packets and of messages"
    return config.publish(title, rows, figure=figure)


def overhead(config: Config) -> list[dict[str, Any]]:
    """Fig. 2: the cost of heads, counted in flits."""
    rows = []
    for payload in config.payloads:
        for name, flits in (("packets", packets), ("one message", sub_packets)):
            sent = flits(config.nbytes, payload)
            data = -(-config.nbytes // FLIT_BYTES)
            rows.append(
                {
                    "of": "Fig. 2",
                    "flow control": name,
                    "payload B": payload,
                    "flits": len(sent),
                    "heads %": 100 * (len(sent) - data) / data,
                    "paper heads %": config.paper.get(str(payload)) if name == "packets" else None,
                }
            )
    return rows


def codes(config: Config) -> list[dict[str, Any]]:
    """Table II: how many flits of each type carry the message, in the largest packets."""
    sent = {
        "packet": packets(config.nbytes, config.payloads[-1]),
        "sub-packet": sub_packets(config.nbytes, config.payloads[-1]),
    }
    return [
        {
            "of": "Table II",
            "flow control": kind,
            "flit": flit,
            "code": f"{code:0{TYPE_BITS}b}",
            "flits": sent[kind].count(code),
        }
        for (kind, flit), code in CODES.items()
    ]


def fields(config: Config) -> list[dict[str, Any]]:
    """Fig. 8: bits of a head's fields, and whether heads lead messages to their ranks."""
    rows = []
    for side in config.sides:
        n, sides = side * side, (side, side)
        collective = Collective("all_gather", n)
        sends = heads(MultiTree().synthesize(topologies.torus(*sides), collective), sides)
        right = sum(followed(u, Head.decode(head.encode(n), n), sides) == v for u, v, head in sends)
        for field, bits in head_bits(n).items():
            rows.append(
                {
                    "of": "Fig. 8",
                    "torus": f"{side}x{side}",
                    "field": field,
                    "bits": bits,
                    "paper bits": config.paper_bits.get(field) if side == 4 else None,
                }
            )
        rows.append(
            {"of": "Fig. 8", "torus": f"{side}x{side}", "sends": len(sends), "led right": right}
        )
    return rows


SHOWN = ("ring", "double_binary_tree", "ring_2d", "multitree", "multitree_msg")


@dataclasses.dataclass(frozen=True)
class Setting:
    """Models on a torus, data parallel."""

    sides: tuple[int, ...]  # of the torus; the first even
    models: tuple[Annotated[str, among(known_models())], ...]  # names in ``configs/workload``
    accelerator: str  # a name in ``configs/accelerator``
    batch_per_rank: int  # of every rank
    element_bytes: int  # bytes of a gradient

    def __post_init__(self) -> None:
        if len(self.sides) != 2 or min(self.sides) < 2 or self.sides[0] % 2:
            raise ConfigError(
                f"sides must be two numbers of at least 2, the first even, got {self.sides}"
            )
        if not self.models:
            raise ConfigError("models must name at least one model")

    def workloads(self) -> dict[str, Workload]:
        """The workload of every model, by the name in its table."""
        accelerator = load_accelerator(self.accelerator)
        models = [load_model(name) for name in self.models]
        return {
            model.name: workload(
                model,
                accelerator,
                batch_per_rank=self.batch_per_rank,
                element_bytes=self.element_bytes,
                ranks=math.prod(self.sides),
            )
            for model in models
        }


@dataclasses.dataclass(frozen=True)
class TrainingTime(StudyConfig):
    """The figure."""

    title: str
    setting: Setting  # the workloads that are trained
    overlap: Overlap  # which all-reduces run beside compute
    claims: tuple[shared.PaperPick, ...]  # the paper's numbers; models by the names in their tables

    def __post_init__(self) -> None:
        for claim in self.claims:
            one_of("claims.of", claim.of, SHOWN)
            one_of("claims.over", claim.over, ("", *SHOWN))


def training_time(config: TrainingTime) -> list[dict[str, Any]]:
    """A row for each network and algorithm, and one for each number that the paper prints."""
    topology = torus(*config.setting.sides)
    defined = algorithms(topology)
    times = {name: {"all": defined[name]} for name in SHOWN}
    runs = shared.run_all(config.setting.workloads(), times, config.overlap)
    rows = shared.rows(runs, LABELS, "ring")
    rows += [claim.row(runs, LABELS) for claim in config.claims]
    figure = shared.draw(runs, LABELS, "ring")
    return config.publish(config.title, rows, figure=figure)


# ----------------------------------------- how much of the all-reduces several ways of overlap hide


@dataclasses.dataclass(frozen=True)
class Overlaps(StudyConfig):
    """The study; the paper has none of it but the two ways of its Fig. 11."""

    setting: Setting  # the workloads that are trained
    algorithm: Annotated[str, among(SHOWN)]  # of the all-reduces, one of those in Fig. 11.
    overlaps: Mapping[str, Overlap]  # ways to overlap, by name

    def __post_init__(self) -> None:
        if not self.overlaps:
            raise ConfigError("overlaps must name at least one way to overlap")


def overlaps(config: Overlaps) -> list[dict[str, Any]]:
    """A row for each model, with its compute and the length of an iteration, all ms."""
    topology = torus(*config.setting.sides)
    times = {"all": algorithms(topology)[config.algorithm]}
    rows, bars = Rows(), {}
    for model, work in config.setting.workloads().items():
        runs = {name: iteration(work, times, way) for name, way in config.overlaps.items()}
        row: dict[str, Any] = {
            "model": model,
            "MB of gradients": work.gradient_bytes / 1e6,
            "compute ms": 1e3 * float(work.compute),
        }
        rows.append(row | {name: 1e3 * float(run.total) for name, run in runs.items()})
        bars[model] = {
            name: {
                "compute": 1.0,
                "waits for gradients": float(run.exposed / run.compute),
            }
            for name, run in runs.items()
        }
    figure = stacked_bars(
        bars, parts=["compute", "waits for gradients"], label="time of an iteration over compute"
    )
    label = LABELS[config.algorithm]
    title = f"An iteration in ms with {label} on {topology.name}, by what overlaps"
    return config.publish(title, rows, figure=figure)
