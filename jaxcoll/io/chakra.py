"""Chakra execution traces of a schedule, which ASTRA-sim runs as a custom collective.

There is a file per rank, ``PREFIX.0.et`` and so on, and ``PREFIX.json``, the system file that names
them. A message is a send node of one rank and a receive node of another, which match by tag, ranks
and bytes. A send waits for the receives of the chunks that it carries (``data_deps``), and for the
previous send on the same link (``ctrl_deps``), because the order on a link is a part of a schedule.
There are only send and receive nodes: ASTRA-sim would charge a nanosecond for every sum. The trace
is a custom collective and not a workload of sends, of which ASTRA-sim runs one per rank at a time.

The encoder is this module's own, because the package called ``chakra`` on PyPI is another project.
The fields are those of the schema of mlcommons/chakra (May 2026).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from jaxcoll import fields
from jaxcoll.collective import Collective
from jaxcoll.errors import FormatError, ScheduleError, TopologyError, shown
from jaxcoll.io import json as native
from jaxcoll.io.files import MAX_BYTES, naming, read_bytes, write_bytes, write_text
from jaxcoll.io.sends import edges_of
from jaxcoll.kinds import names_in
from jaxcoll.numerics import checks
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.simulation import Timeline
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

# The custom collectives that ASTRA-sim runs, with the keys of its system file.
KEYS = names_in("chakra")
SEND, RECEIVE = 5, 6  # NodeType of the schema
_VERSION, _MOST_BYTES = "0.0.4", 2**63 - 1
_OURS = "jaxcoll_"
_CHUNK = re.compile(r"([0-9]{1,9})(\+?)")
# The field for each type of value in an attribute.
_INT32, _INT64, _BOOL, _STRING = 7, 9, 27, 29

Value = int | bool | str


@dataclasses.dataclass(frozen=True)
class Node:
    """An operation of a rank.

    Attributes:
        id: a number that is unique in its rank.
        name: a label for people.
        type: ``SEND``, ``RECEIVE`` or another type of the schema.
        after: ids of the nodes it waits for, data and control.
        said: its attributes by name, such as ``comm_size`` in bytes.
    """

    id: int
    name: str
    type: int
    after: tuple[int, ...]
    said: dict[str, Value]


# ---------------------------------------------------------------------- a timeline's traces


def dumps(timeline: Timeline) -> tuple[bytes, ...]:
    """The traces of a timeline's schedule for its bytes, one per rank.

    Raises:
        FormatError: ASTRA-sim does not run the collective, it has groups, or messages are below a
            byte.
    """
    what, ranks = _collective(timeline), timeline.schedule.topology.num_ranks
    said = _attribute(_OURS + "collective", native.dumps(what))
    begin = _framed(_field(1, _VERSION) + _field(2, said))
    files = [bytearray(begin) for _ in range(ranks)]
    for rank, node in _nodes(timeline):
        parts = [_field(1, node.id), _field(2, node.name), _field(3, node.type)]
        # Sends have even numbers, receives odd ones; waits for sends are control, others data.
        for number, parity in ((4, 0), (5, 1)):
            ids = b"".join(_varint(id_) for id_ in node.after if id_ % 2 == parity)
            parts += [_field(number, ids)] if ids else []
        parts += [_field(10, _attribute(name, value)) for name, value in node.said.items()]
        files[rank] += _framed(b"".join(parts))
    return tuple(map(bytes, files))


def system(timeline: Timeline, prefix: str) -> str:
    """ASTRA-sim's system file for traces with a prefix, relative to the working folder.

    Raises:
        FormatError: see ``dumps``.
    """
    checks.text(prefix, "prefix", FormatError)
    said = {
        "scheduling-policy": "FIFO", "endpoint-delay": 0, "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1, KEYS[_collective(timeline).kind]: [prefix],
        "local-mem-bw": 3350, "boost-mode": 0,
    }  # fmt: skip
    return json.dumps(said, indent=1) + "\n"


def save(path: str | os.PathLike, timeline: Timeline) -> None:
    """Write ``PATH.RANK.et`` for every rank, and then ``PATH.json``; see ``dumps``.

    Raises:
        OSError: a file cannot be written.
    """
    name = _path(path)
    for rank, content in enumerate(dumps(timeline)):
        write_bytes(f"{name}.{rank}.et", content)
    write_text(f"{name}.json", system(timeline, os.path.basename(name)))


def check_collective(what: Collective) -> None:
    """Refuse a collective that ASTRA-sim does not run as a custom one.

    Raises:
        FormatError: it is of another kind, or has groups.
    """
    checks.instance(what, Collective, "what", FormatError)
    if what.kind not in KEYS or what.is_grouped:
        raise FormatError(
            f"ASTRA-sim runs {', '.join(KEYS)} of all ranks as custom collectives, not {what}"
        )


def _collective(timeline: Timeline) -> Collective:
    checks.instance(timeline, Timeline, "timeline", ScheduleError)
    check_collective(timeline.schedule.collective)
    return timeline.schedule.collective


def _path(path: object) -> str:
    if not isinstance(path, (str, os.PathLike)) or not os.fsdecode(path):
        raise FormatError(f"path must be the beginning of the files' paths, got {shown(path)}")
    return os.fsdecode(path)


def _nodes(timeline: Timeline) -> Iterator[tuple[int, Node]]:
    """Every node with its rank; the nodes of a message follow one another.

    Example: three ranks in a ring send chunk 0 along 0 -> 1 in step 0 and along 1 -> 2 in step 1.
    Message 0 is node 0 of rank 0 and node 1 of rank 1; message 1 is node 2 of rank 1, after its
    node 1, and node 3 of rank 2.
    """
    schedule = timeline.schedule
    edges, ptr = schedule.edges, schedule.message_ptr.tolist()
    step, chunk = np.asarray(schedule.step).tolist(), np.asarray(schedule.chunk).tolist()
    adds = np.asarray(schedule.reduce, bool).tolist()
    sizes = schedule.collective.chunk_bytes(timeline.nbytes)
    arrived: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    last: dict[int, int] = {}
    tags: defaultdict[tuple[int, int], int] = defaultdict(int)
    for m, (first, end) in enumerate(itertools.pairwise(ptr)):
        e, t = int(schedule.edge[first]), step[first]
        src, dst, path = int(edges.src[e]), int(edges.dst[e]), edges.path(e)
        size = math.ceil(sum(sizes[c] for c in chunk[first:end]))
        if not 1 <= size <= _MOST_BYTES:
            raise FormatError(f"a message has {size} bytes; ASTRA-sim counts from 1 to 2^63 - 1")
        # For a sum a rank waits for every part that has arrived, not only for the last, because
        # receives end in any order. A chunk that arrives in this step is not sent in it.
        needs = {n for c in chunk[first:end] for s, n in arrived[src, c] if s < t}
        before = [last[path[0]]] if path[0] in last else []
        # A send meets the receive with its tag, ranks and bytes: equal messages between two ranks
        # would meet in any order if they had the same tag.
        said: dict[str, Value] = {
            "is_cpu_op": False, "comm_size": size, "comm_src": src, "comm_dst": dst,
            "comm_tag": tags[src, dst],
        }  # fmt: skip
        rows = zip(chunk[first:end], adds[first:end], strict=True)
        ours: dict[str, Value] = {
            _OURS + "step": t, _OURS + "chunks": ",".join(f"{c}{'+' * a}" for c, a in rows),
            _OURS + "links": ",".join(map(str, path)),
        }  # fmt: skip
        name = f"step {t}: {end - first} chunk{'s' * (end - first > 1)} to rank {dst}"
        yield src, Node(2 * m, name, SEND, (*before, *sorted(needs)), said | ours)
        yield dst, Node(2 * m + 1, f"step {t}: from rank {src}", RECEIVE, (), said)
        tags[src, dst] += 1
        last[path[0]] = 2 * m
        for c in chunk[first:end]:
            arrived[dst, c].append((t, 2 * m + 1))


# Protobuf's wire format: a message consists of fields, and the key of a field is a varint of its
# number and kind (0: a varint follows; 2: a length and that many bytes). See
# protobuf.dev/programming-guides/encoding.


def _varint(number: int) -> bytes:
    number &= 2**64 - 1  # negative numbers take ten bytes in protobuf
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


def _field(number: int, value: Value | bytes) -> bytes:
    if isinstance(value, (str, bytes)):
        content = value.encode() if isinstance(value, str) else value
        return _varint(number << 3 | 2) + _varint(len(content)) + content
    return _varint(number << 3) + _varint(int(value))


def _attribute(name: str, value: Value) -> bytes:
    # As in the shipped examples: older feeders read a comm_size of another integer type as 0 bytes
    # (astra-sim#229).
    kind = _INT32 if name in ("comm_src", "comm_dst", "comm_tag") else _INT64
    kind = _BOOL if isinstance(value, bool) else _STRING if isinstance(value, str) else kind
    return _field(1, name) + _field(kind, value)


def _framed(message: bytes) -> bytes:
    return _varint(len(message)) + message


# ---------------------------------------------------------------------- traces read


def loads(data: bytes) -> tuple[dict[str, Value], tuple[Node, ...]]:
    """The metadata and nodes of a trace of any tool.

    Raises:
        FormatError: the data is not such a trace, or is cut short; the error names the byte.
    """
    checks.instance(data, bytes, "data", FormatError)
    rows = list(_messages(data))
    if not rows:
        raise FormatError("the file is empty; expected a trace, which begins with its metadata")
    begin: dict[str, Value] = {}
    for number, value in _fields(*rows[0]):
        if number == 1 and isinstance(value, bytes):
            begin["version"] = _text(value, rows[0][1])
        elif number == 2:
            begin.update([_pair(value, rows[0][1])])
    nodes = tuple(_node(*row) for row in rows[1:])
    if len({node.id for node in nodes}) < len(nodes):
        raise FormatError("two nodes of the trace have the same id")
    return begin, nodes


def load(path: str | os.PathLike, topology: Topology, max_bytes: int = MAX_BYTES) -> Schedule:
    """The schedule of traces that ``save`` has written, one file per rank; see ``lift``.

    Raises:
        OSError: a file cannot be read.
    """
    name = _path(path)
    checks.instance(topology, Topology, "topology", TopologyError)
    files, left = [], checks.integer(max_bytes, "max_bytes", FormatError, least=0, most=2**62)
    for rank in range(topology.num_ranks):
        files.append(read_bytes(f"{name}.{rank}.et", left))
        left -= len(files[-1])
    with naming(f"{name}.*.et"):
        return lift(files, topology)


def lift(files: Sequence[bytes], topology: Topology) -> Schedule:
    """The schedule of traces on their network, verified.

    Nodes of ``dumps`` state steps, chunks and links, which ASTRA-sim ignores. Traces of other tools
    do not, and can only be read as nodes, by ``loads``.

    Args:
        files: the trace of every rank.
        topology: the network that the schedule was made for.

    Raises:
        FormatError: they are not such traces, or their number is not that of the network's ranks.
        ScheduleError: the schedule does not carry out its collective.
    """
    checks.instance(topology, Topology, "topology", TopologyError)
    files = checks.members(files, "files", FormatError)
    if len(files) != topology.num_ranks:
        raise FormatError(
            f"there are {len(files)} traces, but {topology} has {topology.num_ranks} ranks; "
            "give one trace for each rank"
        )
    read = [loads(data) for data in files]
    what = _collective_of(read[0][0].get(_OURS + "collective"), topology)
    # Nodes are numbered over all ranks, in the order of the schedule's messages.
    sends = sorted(
        ((node, rank) for rank, (_, nodes) in enumerate(read) for node in nodes
         if node.type == SEND), key=lambda pair: pair[0].id,
    )  # fmt: skip
    steps, paths, chunks, adds = [], [], [], []
    for node, rank in sends:
        step, path, rows = _said(node)
        ends = [int(topology.src[link]) for link in path if link < topology.num_links]
        if len(ends) < len(path) or ends[0] != rank:
            raise FormatError(
                f"node {node.id} of rank {rank} goes over links that {topology} does not have; "
                "give the network that the traces were made for"
            )
        for chunk, added in rows:
            steps.append(step)
            paths.append(path)
            chunks.append(chunk)
            adds.append(added)
    claims = what.num_ranks, what.num_chunks, what.num_deliveries, len(chunks)
    fields.check_claims("the traces", *claims)
    edges, edge = edges_of(topology, paths)
    made = Schedule.from_sends(
        topology, what, steps, edge, chunks, np.asarray(adds, bool), edges=edges,
        provenance=Provenance("chakra"),
    )  # fmt: skip
    verify(made)
    return made


def _collective_of(text: object, topology: Topology) -> Collective:
    """The collective that the metadata of a trace states, for all ranks of a network."""
    if not isinstance(text, str):
        raise FormatError(
            "the traces do not state their collective, so another tool wrote them; give "
            "those that jaxcoll wrote"
        )
    what = native.loads(text)
    if not isinstance(what, Collective):
        raise FormatError(
            f"the traces hold a {type(what).__name__} where their collective is expected"
        )
    if what.num_ranks != topology.num_ranks:
        raise FormatError(f"the traces hold {what}, but {topology} has {topology.num_ranks} ranks")
    return what


def _said(node: Node) -> tuple[int, tuple[int, ...], list[tuple[int, bool]]]:
    """Step, links and chunks of a send, and whether each chunk is added."""
    step = node.said.get(_OURS + "step")
    links, chunks = (node.said.get(_OURS + key) for key in ("links", "chunks"))
    found = [_CHUNK.fullmatch(part) for part in str(chunks).split(",")]
    is_path = isinstance(links, str) and re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", links)
    if type(step) is not int or not 0 <= step < 2**24 or not is_path or not all(found):
        raise FormatError(
            f"node {node.id} does not say its step, chunks and links; give traces that "
            "jaxcoll wrote"
        )
    path = tuple(int(link) for link in str(links).split(","))
    return step, path, [(int(each[1]), bool(each[2])) for each in found if each]


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A varint, and the place after it."""
    value = 0
    for i in range(10):
        if at + i >= end:
            raise FormatError(f"byte {at}: the trace is cut short within a number")
        value |= (data[at + i] & 127) << 7 * i
        if data[at + i] < 128:
            return value & 2**64 - 1, at + i + 1
    raise FormatError(f"byte {at}: a number takes more than ten bytes")


def _messages(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The messages of a stream, each after its length, and the beginning of each."""
    at = 0
    while at < len(data):
        size, begin = _number(data, at, len(data))
        if begin + size > len(data):
            raise FormatError(f"byte {at}: a message of {size} bytes is cut short")
        yield data[begin : begin + size], begin
        at = begin + size


def _fields(data: bytes, place: int) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields."""
    at = 0
    while at < len(data):
        key, at = _number(data, at, len(data))
        # Kinds 1 and 5 are floats of 8 and 4 bytes, which other tools write; they are skipped here.
        kind, size = key & 7, {1: 8, 5: 4}.get(key & 7, 0)
        if kind == 0:
            value, at = _number(data, at, len(data))
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _number(data, at, len(data))
        if kind not in (1, 2, 5) or at + size > len(data):
            raise FormatError(f"byte {place + at}: field {key >> 3} of a message is cut short")
        yield key >> 3, data[at : at + size]
        at += size


def _text(value: bytes, place: int) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise FormatError(f"byte {place}: a text is not UTF-8") from None


def _pair(value: int | bytes, place: int) -> tuple[str, Value]:
    """Name and value of an attribute; kinds that are not read have the value 0."""
    name, found = "", 0
    if not isinstance(value, bytes):
        raise FormatError(f"byte {place}: an attribute is not a message")
    for number, part in _fields(value, place):
        if number == 1 and isinstance(part, bytes):
            name = _text(part, place)
        elif number == _STRING and isinstance(part, bytes):
            found = _text(part, place)
        elif isinstance(part, int):
            # The upper half of 64 bits are the negative numbers.
            found = bool(part) if number == _BOOL else part - (part >> 63 << 64)
    return name, found


def _node(data: bytes, place: int) -> Node:
    numbers = {1: 0, 3: 0}
    after: list[int] = []
    said: dict[str, Value] = {}
    name = ""
    for number, value in _fields(data, place):
        if number in numbers and isinstance(value, int):
            numbers[number] = value
        elif number == 2 and isinstance(value, bytes):
            name = _text(value, place)
        elif number in (4, 5):  # one by one, or packed, as the encoder chose
            after += [value] if isinstance(value, int) else _packed(value)
        elif number == 10:
            said.update([_pair(value, place)])
    if not 0 <= numbers[3] <= 64:
        raise FormatError(f"byte {place}: a node has the unknown type {shown(numbers[3])}")
    return Node(numbers[1], name, numbers[3], tuple(after), said)


def _packed(value: bytes) -> list[int]:
    found, at = [], 0
    while at < len(value):
        number, at = _number(value, at, len(value))
        found.append(number)
    return found
