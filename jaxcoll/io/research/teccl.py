"""TE-CCL: its networks, which have names, and its schedules, in JSON.

An input file names one of the networks in TE-CCL's program: DGX1, NDv2, DGX2, AMD and Mesh, by
``chassis``, ``alpha`` (seconds) and ``side_length``. ``network`` builds them, and ``loads`` reads
the input file. Vertices are named by TE-CCL's numbers, in which switches come before the ranks of
their chassis. Its mesh numbers ranks row by row and also joins the end of each row with the next
row.

A schedule is a list of texts, such as ``Chunk 0 from 2 traveled over 2->3 in epoch 1 via switches
0``. ``save`` writes those of an all_gather or all_to_all, and ``load_schedule`` reads them on their
network. Solutions of its linear program, which move parts of chunks, are refused.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence

import numpy as np

from jaxcoll import fields as readers
from jaxcoll.collective import Collective
from jaxcoll.errors import FormatError, JaxcollError
from jaxcoll.fields import glimpse
from jaxcoll.io.files import load_text, write_text
from jaxcoll.io.sends import edges_of, links_by_ends
from jaxcoll.kinds import kind_of
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.simulation import simulate
from jaxcoll.topology import Topology

MAX_BYTES = 2**26
NAMES = ("DGX1", "NDv2", "DGX2", "AMD", "Mesh")
_KINDS = ("all_gather", "all_to_all")
_MOST_CHASSIS, _MOST_SIDE = 64, 64
_FLOW = re.compile(
    r"Chunk ([0-9]{1,7}) from ([0-9]{1,7}) traveled over ([0-9]{1,7})->([0-9]{1,7}) "
    r"in epoch ([0-9]{1,9})(?: via switches ([0-9]{1,7}(?: -> [0-9]{1,7}){0,15}))?",
    re.ASCII,
)
_MOST_FLOWS = 2**20

# NVLinks between the GPUs of a DGX-1, of 25 GB/s each; NDv2's hosts are the same.
_DGX1 = (
    (0, 2, 1, 1, 2, 0, 0, 0), (2, 0, 1, 2, 0, 1, 0, 0), (1, 1, 0, 2, 0, 0, 2, 0),
    (1, 2, 2, 0, 0, 0, 0, 1), (2, 0, 0, 0, 0, 2, 1, 1), (0, 1, 0, 0, 2, 0, 1, 2),
    (0, 0, 2, 0, 1, 1, 0, 2), (0, 0, 0, 1, 1, 2, 2, 0),
)  # fmt: skip
# Links of 50 GB/s between the dies of eight MI250, by the lower number.
_AMD = {
    0: {1: 4, 4: 2, 8: 1}, 1: {5: 1, 9: 1, 10: 1}, 2: {3: 4, 6: 1, 10: 1, 9: 1}, 3: {7: 2, 11: 1},
    4: {6: 1, 5: 4}, 5: {7: 1, 6: 1}, 6: {7: 4}, 8: {9: 4, 12: 2}, 9: {13: 1}, 10: {11: 4, 14: 1},
    11: {15: 2}, 12: {13: 4, 14: 1}, 13: {15: 1, 14: 1}, 14: {15: 4},
}  # fmt: skip
_DEFAULT_ALPHA = 0.7e-6

Wires = list[tuple[int, int, float, float]]  # TE-CCL's numbers, seconds and GB/s, one way


def network(
    name: str, chassis: int = 1, alpha: float = _DEFAULT_ALPHA, side_length: int = 2
) -> Topology:
    """A network of TE-CCL.

    Args:
        name: one of ``NAMES``.
        chassis: number of hosts: 2 for DGX2, 1 for DGX1, AMD and Mesh.
        alpha: seconds, for networks whose latency its program does not have (DGX1, AMD, Mesh).
        side_length: side of a Mesh.

    Raises:
        FormatError: the name is unknown, or its program does not wire this number of chassis.
    """
    checks.choice(name, NAMES, "name", FormatError)
    chassis = checks.integer(chassis, "chassis", FormatError, least=1, most=_MOST_CHASSIS)
    alpha = float(checks.nonnegative(alpha, "alpha", FormatError))
    side = checks.integer(side_length, "side_length", FormatError, least=2, most=_MOST_SIDE)
    switches: Sequence[int] = ()
    if name == "NDv2":
        wires, switches = _ndv2(chassis)
    elif name == "DGX2":
        # A switch per chassis, then its 16 GPUs; odd ones send to the even one before them in the
        # other chassis.
        switches, wires = (0, 17), []
        for base, other in ((0, 17), (17, 0)):
            for gpu in range(base + 1, base + 17):
                wires += [(base, gpu, 0.35e-6, 125.0), (gpu, base, 0.35e-6, 125.0)]
            wires += [(base + s + 1, other + s, 2.6e-6, 12.5) for s in range(1, 16, 2)]
    elif name == "DGX1":
        wires = _dgx1(alpha)
    elif name == "AMD":
        wires = [
            (*ends, alpha, 50.0 * links)
            for a, row in _AMD.items()
            for b, links in row.items()
            for ends in ((a, b), (b, a))
        ]
    else:
        # Consecutive numbers are joined regardless of their rows, as in TE-CCL's program: also the
        # end of a row with the beginning of the next one, unlike in any other mesh.
        wires = [
            (a, b, alpha, 100.0)
            for a in range(side * side)
            for b in (a - side, a - 1, a + 1, a + side)
            if 0 <= b < side * side
        ]
    if chassis != 2 if name == "DGX2" else chassis > 1 and name != "NDv2":
        wanted = 2 if name == "DGX2" else 1
        raise FormatError(f"TE-CCL's {name} is wired for chassis={wanted}, got {chassis}")
    return _named(wires, switches, f"TE-CCL {name}")


def _ndv2(chassis: int) -> tuple[Wires, Sequence[int]]:
    # Two hosts are wired to each other, more of them to a switch; in each host one GPU sends out
    # and another receives, over the one NIC of the host.
    inside = _dgx1(0.7e-6)
    first = 1 if chassis > 2 else 0  # number 0 is the switch
    wires = [
        (first + 8 * host + a, first + 8 * host + b, alpha, speed)
        for host in range(chassis)
        for a, b, alpha, speed in inside
    ]
    if chassis == 2:
        wires += [(0, 9, 1.3e-6, 12.5), (8, 1, 1.3e-6, 12.5)]
    elif chassis > 2:
        for host in range(chassis):
            wires += [(8 * host + 1, 0, 1.3e-6, 12.5), (0, 8 * host + 2, 1.3e-6, 12.5)]
    return wires, (0,) if chassis > 2 else ()


def _dgx1(alpha: float) -> Wires:
    return [
        (a, b, alpha, 25.0 * links)
        for a, row in enumerate(_DGX1)
        for b, links in enumerate(row)
        if links
    ]


def _named(wires: Wires, switches: Sequence[int], name: str) -> Topology:
    """The network with ranks first; vertices are named by TE-CCL's numbers."""
    numbers = sorted({end for wire in wires for end in wire[:2]}, key=lambda v: (v in switches, v))
    place = {number: i for i, number in enumerate(numbers)}
    src, dst, alpha, speed = map(np.asarray, zip(*wires, strict=True))
    return Topology(
        len(numbers) - len(switches),
        np.asarray([place[number] for number in src.tolist()]),
        np.asarray([place[number] for number in dst.tolist()]),
        alpha,
        1e9 * speed,
        num_vertices=len(numbers),
        name=name,
        vertex_names=tuple(map(str, numbers)) if switches else (),
    )


def loads(text: str) -> Topology:
    """The network that an input file of TE-CCL names.

    Raises:
        FormatError: the format is another one, or the network is not one of ``NAMES``.
    """
    whole = readers.Fields(readers.parse(text), "the file")
    said = readers.Fields(whole.take("TopologyParams", lambda value, _: value), "TopologyParams")
    name = said.take("name", readers.text)
    known = {each.lower(): each for each in NAMES}
    if name.lower() not in known:
        raise FormatError(f"TopologyParams.name must be one of {NAMES}, got {glimpse(name)}")
    alphas = said.optional("alpha", _numbers) or (_DEFAULT_ALPHA,)
    side = said.optional("side_length", readers.whole(-1, _MOST_SIDE))
    chassis = said.take("chassis", readers.whole(1, _MOST_CHASSIS), 1)
    if alphas[0] < 0:
        raise FormatError(f"TopologyParams.alpha must be at least 0, got {alphas[0]:g}")
    return network(known[name.lower()], chassis, alphas[0], max(side or 2, 2))


def _numbers(value: object, name: str) -> tuple[float, ...]:
    return readers.list_of(readers.number)(value if isinstance(value, list) else [value], name)


# ---------------------------------------------------------------------- schedules


def dumps(schedule: Schedule, nbytes: Number) -> str:
    """A schedule as TE-CCL writes them, with an epoch per step.

    Args:
        nbytes: bytes of a rank's buffer for which the simulated time is written.

    Raises:
        FormatError: the collective is not an all_gather or all_to_all of all ranks with equal
            shards, or a path leads through ranks.
    """
    checks.instance(schedule, Schedule, "schedule", FormatError)
    what, network = schedule.collective, schedule.topology
    if what.kind not in _KINDS or what.is_grouped or what.shares is not None:
        raise FormatError(
            f"TE-CCL's files hold an all_gather or all_to_all of all ranks, got {what}"
        )
    if network.has_parallel_links:
        raise FormatError(
            "TE-CCL's files have at most one link from a vertex to another, and this "
            "network has parallel links"
        )
    nbytes = checks.nbytes(nbytes, FormatError)
    label = _numbers_of(network)
    number = _number_at_owner(what)
    # Steps are its epochs, in which a chunk crosses a link or a path through switches.
    flows = []
    columns = (schedule.chunk, schedule.edge, schedule.step)
    for chunk, edge, step in zip(*(column.tolist() for column in columns), strict=True):
        links = schedule.edges.path(edge)
        inner = [int(network.dst[link]) for link in links[:-1]]
        if any(vertex < network.num_ranks for vertex in inner):
            raise FormatError(
                f"step {step}: a path leads over rank {inner[0]}, and TE-CCL's paths lead over "
                "switches only"
            )
        src, dst = int(network.src[links[0]]), int(network.dst[links[-1]])
        via = " -> ".join(label[vertex] for vertex in inner)
        flows.append(
            f"Chunk {number[chunk]} from {label[int(what.owner[chunk])]} traveled over "
            f"{label[src]}->{label[dst]} in epoch {step}{f' via switches {via}' if via else ''}"
        )
    time, epochs = simulate(schedule, nbytes).time, max(schedule.num_steps, 1)
    whole = {
        "0-Collective": what.kind,
        "1-Epoch_Duration": time / epochs,
        "2-Expected_Epoch_Duration": time / epochs,
        "3-Epochs_Required": epochs,
        "4-Collective_Finish_Time": time,
        "5-Algo_Bandwidth": float(nbytes) / time / 1e9 if time else 0.0,
        "7-Flows": flows,
    }
    return json.dumps(whole, indent=1) + "\n"


def _numbers_of(network: Topology) -> list[str]:
    """TE-CCL's number of each vertex: its name, if all names are numbers."""
    names = network.vertex_names
    is_numbers = all(re.fullmatch("[0-9]{1,7}", name) for name in names)
    if names and is_numbers and len({int(name) for name in names}) == len(names):
        return [str(int(name)) for name in names]
    return [str(vertex) for vertex in range(network.num_vertices)]


def _number_at_owner(what: Collective) -> list[int]:
    """The number of each chunk among those of its owner."""
    seen = np.zeros(what.num_ranks, np.int64)
    numbers = []
    for owner in what.owner.tolist():
        numbers.append(int(seen[owner]))
        seen[owner] += 1
    return numbers


def loads_schedule(text: str, network: Topology, kind: str | None = None) -> Schedule:
    """The schedule of a file on its network.

    Args:
        kind: all_gather or all_to_all, which TE-CCL's own files do not state.

    Raises:
        FormatError: the format is another one, there are parts of chunks, links do not exist, or
            the chunks' flows do not make a collective of all ranks.
    """
    checks.instance(network, Topology, "network", FormatError)
    checks.optional(kind, checks.choice, _KINDS, "kind", FormatError)
    whole = readers.Fields(readers.parse(text), "the file")
    said = whole.take("0-Collective", readers.text, None)
    kind = checks.choice(kind or said or "all_gather", _KINDS, "0-Collective", FormatError)
    texts = whole.take("7-Flows", readers.items)
    if len(texts) > _MOST_FLOWS:
        raise FormatError(f"7-Flows has {len(texts)} entries; at most {_MOST_FLOWS} are read")
    place = {label: vertex for vertex, label in enumerate(_numbers_of(network))}
    flows = [_flow(each, f"7-Flows[{i}]", place, network) for i, each in enumerate(texts)]
    # No key states the number of chunks of a rank; every chunk is sent, so the highest number tells
    # it. In an all_to_all the chunks for the rank itself are not sent, and they need not be the
    # last ones, so the number is rounded up.
    per_rank = 1 + max((flow[0] for flow in flows), default=-1)
    ranks = network.num_ranks
    parts = per_rank if kind_of(kind).copies else -(-per_rank // ranks)
    if not flows or ranks * ranks * parts > readers.MAX_FREE:
        raise FormatError(
            f"7-Flows must have chunks numbered from 0 to a few, got none or up to {per_rank - 1}"
        )
    what = Collective(kind, ranks, parts)
    index = {
        (owner, number): chunk
        for chunk, (owner, number) in enumerate(
            zip(what.owner.tolist(), _number_at_owner(what), strict=True)
        )
    }
    edges, edge_of = _edges(flows, network)
    columns = [
        (epoch, edge_of[path], index[source, number]) for number, source, path, epoch in flows
    ]
    try:
        step, edge, chunk = zip(*columns, strict=True)
        made = Provenance("te-ccl file")
        return Schedule.from_sends(network, what, step, edge, chunk, edges=edges, provenance=made)
    except JaxcollError as error:
        raise FormatError(f"the schedule is refused: {error}") from error


def _flow(value: object, where: str, place: Mapping[str, int], network: Topology):
    """Chunk, its source, the path of vertices and the epoch."""
    match = _FLOW.fullmatch(readers.text(value, where))
    if match is None:
        raise FormatError(
            f"{where}: expected 'Chunk 0 from 0 traveled over 0->1 in epoch 0', got "
            f"{glimpse(value)}; parts of chunks are not read"
        )
    chunk, source, src, dst, epoch = match.groups()[:5]
    ends = [source, src, *(match[6].split(" -> ") if match[6] else ()), dst]
    unknown = next((end for end in ends if str(int(end)) not in place), None)
    if unknown is not None:
        raise FormatError(f"{where}: the network has no vertex {unknown}")
    first, *path = (place[str(int(end))] for end in ends)
    if max(first, path[0], path[-1]) >= network.num_ranks:
        raise FormatError(f"{where}: chunks start and end at ranks, not at switches")
    return int(chunk), first, tuple(path), int(epoch)


def _edges(flows, network: Topology) -> tuple[Edges, dict[tuple[int, ...], int]]:
    """The edges of flows, and the number of each path of vertices among them."""
    link_of = links_by_ends(network)
    ways = list(dict.fromkeys(path for _, _, path, _ in flows))
    missing = next((e for way in ways for e in itertools.pairwise(way) if e not in link_of), None)
    if missing is not None:
        raise FormatError(f"7-Flows: the network has no link {missing[0]}->{missing[1]}")
    # A schedule on a direct network has the links as edges, as ``dumps`` got it.
    if network.is_direct and all(len(way) == 2 for way in ways):
        return Edges.from_links(network), link_of
    paths = [tuple(link_of[ends] for ends in itertools.pairwise(way)) for way in ways]
    edges, numbers = edges_of(network, paths)
    return edges, dict(zip(ways, numbers, strict=True))


# ---------------------------------------------------------------------- files


def save(path: str | os.PathLike, schedule: Schedule, nbytes: Number) -> None:
    """Write ``dumps(schedule, nbytes)``, all or nothing. An OSError if it cannot be written."""
    write_text(path, dumps(schedule, nbytes))


def load(path: str | os.PathLike, *, max_bytes: int = MAX_BYTES) -> Topology:
    """The network that an input file names; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes)


def load_schedule(
    path: str | os.PathLike,
    network: Topology,
    kind: str | None = None,
    *,
    max_bytes: int = MAX_BYTES,
) -> Schedule:
    """The schedule of a file on its network; see ``loads_schedule``.

    Raises:
        OSError: the file cannot be read.
    """
    return load_text(path, loads_schedule, max_bytes, network=network, kind=kind)
