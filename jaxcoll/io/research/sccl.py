"""JSON of SCCL, msccl-tools and TACCL: networks, and schedules, which they call algorithms.

Objects name their kind in ``msccl_type``, in older files and TACCL's in ``sccl_type``. A topology
has ``links[dst][src]``, whole numbers of chunks per round: neither latencies nor bandwidths, which
are arguments here. An algorithm has steps of sends ``[chunk, src, dst]``, to which TACCL appends
time and more; the chunks that every rank starts and ends with tell the collective. The format
cannot express reductions: tools reverse an all_gather.

``topology`` reads the network that a user of TACCL describes, for one host or several. Its numbers
are microseconds for one message size, which the file does not state either.

Files written here also have the key ``links_are`` (latency and bandwidth of one link) in the
topology, which the tools ignore.
"""

from __future__ import annotations

import itertools
import json
import os
from fractions import Fraction
from typing import Any

import numpy as np

from jaxcoll import fields as readers
from jaxcoll.collective import Collective
from jaxcoll.errors import AssumptionWarning, FormatError, JaxcollError, warn_user
from jaxcoll.fields import glimpse
from jaxcoll.io.files import load_text, write_text
from jaxcoll.io.networks.link_types import ALPHA
from jaxcoll.io.sends import links_by_ends
from jaxcoll.kinds import KINDS, names_in
from jaxcoll.numerics import checks
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.topology import Topology

MAX_BYTES = 2**25
DIALECTS = ("msccl", "sccl")
_MOST_RANKS, _MOST_MULTIPLE, _MOST_WIRES = 1024, 4096, 2**18
_BANDWIDTH = 25e9  # of a link of one chunk per round, if it is not stated: an NVLink
_ADDED = "links_are"
# Names of msccl-tools, whose files cannot express which steps of other collectives add.
_NAMES = names_in("sccl")


# ---------------------------------------------------------------------- writing


def dumps(obj: Topology | Schedule, dialect: str = "msccl") -> str:
    """A network or a schedule as JSON.

    Args:
        dialect: "msccl", or "sccl" for older tools and TACCL.

    Raises:
        FormatError: the object is something else; a network has switches, links of several
            latencies, or bandwidths that are not small multiples of each other; or a schedule
            reduces, has several groups or unequal shards, or uses paths of several links.
    """
    key = f"{checks.choice(dialect, DIALECTS, 'dialect', FormatError)}_type"
    checks.instance(obj, (Topology, Schedule), "obj", FormatError)
    if isinstance(obj, Topology):
        return json.dumps(_written_network(obj, key)) + "\n"
    return json.dumps(_written_schedule(obj, key)) + "\n"


def _written_network(network: Topology, key: str) -> dict:
    if not network.is_direct or network.num_ranks > _MOST_RANKS:
        raise FormatError(
            f"the format has links between ranks, {_MOST_RANKS} at most, and no switches; got "
            f"{network}"
        )
    if len(set(network.exact_alpha)) > 1 or network.has_parallel_links:
        raise FormatError(
            "the format has no latencies, and one link from a rank to another: this network has "
            f"{len(set(network.exact_alpha))} latencies"
            f"{' and parallel links' if network.has_parallel_links else ''}"
        )
    # A link carries a whole number of chunks per round, of which the slowest link carries one.
    least = min(network.exact_bandwidth, default=Fraction(1))
    links = [[0] * network.num_ranks for _ in range(network.num_ranks)]
    ends = zip(network.src.tolist(), network.dst.tolist(), network.exact_bandwidth, strict=True)
    for src, dst, bandwidth in ends:
        multiple = bandwidth / least
        if multiple.denominator != 1 or multiple > _MOST_MULTIPLE:
            raise FormatError(
                f"bandwidths must be whole multiples of the least one, up to {_MOST_MULTIPLE}: "
                f"link {src}->{dst} has {float(multiple):g} times its bandwidth"
            )
        links[dst][src] = int(multiple)
    one = {
        "alpha": float(network.alpha[0]) if network.num_links else 0.0,
        "bandwidth": readers.encode_rational(least),
    }
    return {key: "topology", "name": str(network.name), "switches": [], "links": links, _ADDED: one}


def _written_schedule(schedule: Schedule, key: str) -> dict:
    what = schedule.collective
    if what.kind not in _NAMES or what.is_grouped or what.shares is not None:
        raise FormatError(
            f"the format holds {', '.join(_NAMES)} of all ranks with equal shards, got "
            f"{what}; for a reduction, write the all_gather that it reverses"
        )
    if (schedule.edges.hops != 1).any():
        raise FormatError("the format has sends over single links, not over paths of several")
    network = _written_network(schedule.topology, key)
    # The format has no kind: a collective is given by the ranks that hold and want each chunk.
    chunks = []
    for rank_sets in zip(*_sides(what), strict=True):
        pre, post = (np.flatnonzero(each).tolist() for each in rank_sets)
        chunks.append({key: "chunk", "pre": pre, "post": post, "addr": len(chunks)})
    sends = zip(schedule.chunk.tolist(), schedule.src.tolist(), schedule.dst.tolist(), strict=True)
    listed = [list(send) for send in sends]
    steps = [
        {key: "step", "rounds": 1, "sends": listed[start:end]}
        for start, end in itertools.pairwise(schedule.step_ptr.tolist())
    ]
    name = f"{_NAMES[what.kind]}(n={what.num_ranks})"
    collective = {
        key: "collective", "name": name, "nodes": what.num_ranks, "chunks": chunks, "triggers": {},
        "runtime_name": what.kind.replace("_", ""),
    }  # fmt: skip
    instance = {
        key: "instance", "steps": len(steps), "extra_rounds": 0, "chunks": what.chunks_per_shard,
        "pipeline": None, "extra_memory": None, "allow_exchange": False,
    }  # fmt: skip
    maps = [
        {str(rank): np.flatnonzero(held).tolist() for rank, held in enumerate(side.T)}
        for side in _sides(what)
    ]
    return {
        key: "algorithm", "name": f"jaxcoll {name}", "instance": instance,
        "input_map": maps[0], "output_map": maps[1], "steps": steps,
        "collective": collective, "topology": network,
    }  # fmt: skip


def _sides(what: Collective) -> tuple[np.ndarray, np.ndarray]:
    """The ranks that hold and that want each chunk, bool of shape (chunks, ranks) each."""
    rank, chunk = np.arange(what.num_ranks)[None], np.arange(what.num_chunks)[:, None]
    return what.holds(rank, chunk), what.wants(rank, chunk)


# ---------------------------------------------------------------------- reading


def loads(
    text: str, *, alpha: float | None = None, bandwidth: float | None = None
) -> Topology | Schedule:
    """The network or schedule of JSON text.

    Args:
        alpha: seconds of every link, which files of other tools do not state.
        bandwidth: bytes per second of a link of one chunk per round, which they do not state
            either.

    Raises:
        FormatError: the format is another one, switches limit several links together, the
            collective reduces or is unknown to this library, or sends use links that do not exist.

    Warns:
        AssumptionWarning: 0.7 us and 25 GB/s are assumed, because neither file nor argument states
            them.
    """
    whole = readers.parse(text)
    kind = _kind(whole, "the file")
    if kind not in ("topology", "algorithm"):
        raise FormatError(f"expected a topology or an algorithm, got {glimpse(kind)}")
    for name, value in (("alpha", alpha), ("bandwidth", bandwidth)):
        checks.optional(value, checks.nonnegative, name, FormatError)
    try:
        read = _read_network if kind == "topology" else _read_schedule
        return read(whole, alpha, bandwidth)
    except FormatError:
        raise
    except JaxcollError as error:
        raise FormatError(f"the content of this {kind} is refused: {error}") from error


def _kind(value: object, where: str) -> str:
    fields = readers.json_object(value, where)
    return readers.text(fields.get("msccl_type", fields.get("sccl_type")), f"{where}.msccl_type")


def _read_network(value: object, alpha: float | None, bandwidth: float | None) -> Topology:
    fields = readers.Fields(value, "topology")
    links = fields.take("links", readers.list_of(readers.list_of(readers.whole(0, 2**31))))
    if fields.take("switches", readers.items, []):
        raise FormatError(
            "topology.switches limit several links together, which links alone cannot say; give "
            "the switches as vertices"
        )
    ranks = len(links)
    if not 1 <= ranks <= _MOST_RANKS or any(len(row) != ranks for row in links):
        raise FormatError(f"topology.links must be a square of 1 to {_MOST_RANKS} ranks")
    said = fields.optional(_ADDED, lambda value, where: readers.Fields(value, where))
    if said is not None:
        alpha = said.take("alpha", readers.number) if alpha is None else alpha
        own = said.take("bandwidth", readers.rational)
        bandwidth = own if bandwidth is None else bandwidth  # type: ignore[assignment]
    assumed = [
        text
        for value, text in ((alpha, "0.7 us"), (bandwidth, "25 GB/s per link"))
        if value is None
    ]
    if assumed:
        warn_user(
            f"the file says no latency and bandwidth; assumed: {', '.join(assumed)}; give alpha= "
            "and bandwidth=",
            AssumptionWarning,
        )
    one = Fraction(bandwidth or _BANDWIDTH)
    # Rows of the matrix are receivers: [dst][src], unlike a matrix of outgoing links.
    ends = [(s, d) for s in range(ranks) for d in range(ranks) if links[d][s]]
    exact: Any = [one * links[d][s] for s, d in ends]  # fractions, which float arrays cannot hold
    src, dst = np.asarray(ends, int).reshape(-1, 2).T
    alphas = np.full(len(ends), ALPHA if alpha is None else alpha, float)
    name = fields.take("name", readers.text, "")
    return Topology(ranks, src, dst, alphas, exact, name=name)


def _read_schedule(value: object, alpha: float | None, bandwidth: float | None) -> Schedule:
    fields = readers.Fields(value, "algorithm")
    network = _read_network(fields.take("topology", lambda v, _: v), alpha, bandwidth)
    if network.num_ranks > 256:
        raise FormatError(f"schedules are read for up to 256 ranks, got {network.num_ranks}")
    what = _read_collective(fields.take("collective", lambda v, _: v), network.num_ranks)
    link_of = links_by_ends(network)
    step, edge, chunk = [], [], []
    for i, each in enumerate(fields.take("steps", readers.items)):
        for j, send in enumerate(readers.Fields(each, f"steps[{i}]").take("sends", readers.items)):
            where = f"steps[{i}].sends[{j}]"
            entries = readers.items(send, where)
            # TACCL appends the end of a send, its link and whether it adds; the order of sends is
            # enough.
            if not 3 <= len(entries) <= 6:
                raise FormatError(
                    f"{where} must begin with chunk, src and dst, got {len(entries)} items"
                )
            number, src, dst = readers.column(readers.INT32)(entries[:3], where).tolist()
            if (src, dst) not in link_of or number >= what.num_chunks:
                raise FormatError(
                    f"{where}: the network or the collective has no chunk {number} "
                    f"over {src}->{dst}"
                )
            step.append(i)
            edge.append(link_of[src, dst])
            chunk.append(number)
    made = Provenance("sccl file")
    return Schedule.from_sends(network, what, step, edge, chunk, provenance=made)


def _read_collective(value: object, ranks: int) -> Collective:
    """The collective whose chunks start and end at the ranks that the file states."""
    fields = readers.Fields(value, "collective")
    each = fields.take("chunks", readers.items)
    if ranks * len(each) > readers.MAX_FREE or not each:
        raise FormatError(f"collective.chunks has {len(each)} chunks for {ranks} ranks")
    sides = np.zeros((2, len(each), ranks), bool)
    for i, chunk in enumerate(each):
        taken = readers.Fields(chunk, f"collective.chunks[{i}]")
        for side, name in enumerate(("pre", "post")):
            sides[side, i, taken.take(name, readers.column(ranks - 1))] = True
    # A rank that holds or wants the first chunk is the root, if there is one. A guess is completed
    # and compared, because names in files ("Allgather(n=8)") are for people, and tools write
    # others.
    holds, wants = sides[:, 0].argmax(axis=1).tolist()
    for kind in _NAMES:
        row = KINDS[kind]
        root = holds if row.starts_at_root else wants if row.ends_at_root else None
        one = Collective(kind, ranks, 1, root=root).num_chunks
        if len(each) % one == 0:
            what = Collective(kind, ranks, len(each) // one, root=root)
            if all((mine == given).all() for mine, given in zip(_sides(what), sides, strict=True)):
                return what
    raise FormatError(
        f"collective.chunks: none of {', '.join(_NAMES)} starts and ends with these chunks"
    )


# ---------------------------------------------------------------------- networks of TACCL


def topology(text: str, nbytes: float, *, hosts: int = 1) -> Topology:
    """The network of a topology file of TACCL.

    Latencies are its ``alpha``; bandwidths are ``nbytes`` divided by the microseconds of ``betas``.
    GPUs of several hosts are joined through one vertex per NIC, and GPUs are assigned to NICs in
    turn.

    Args:
        nbytes: bytes of the message that the file's times refer to, such as 1e6 for a file for 1
            MB.
        hosts: number of equal hosts.

    Raises:
        FormatError: the format is another one, there are no links (``node_betas_list`` belongs to
            TACCL's own machines, whose links it does not state), or hosts have no NICs.
    """
    size = float(checks.nbytes(nbytes, FormatError))
    hosts = checks.integer(hosts, "hosts", FormatError, least=1, most=256)
    fields = readers.Fields(readers.parse(text), "the file")
    gpus = fields.take("gpus_per_node", readers.whole(1, 256))
    if "links" not in fields.left or "betas" not in fields.left:
        raise FormatError(
            "the file has no links and betas: node_betas_list describes NDv2 and DGX-2, "
            "whose links TACCL has in its program; give links, betas and invbws"
        )
    if hosts * gpus * gpus > _MOST_WIRES:
        raise FormatError(
            f"{hosts} hosts of {gpus} GPUs may have {hosts * gpus * gpus} links; at most "
            f"{_MOST_WIRES} are read, so give fewer hosts"
        )
    square = readers.list_of(readers.list_of(readers.number))
    links, betas = fields.take("links", square), fields.take("betas", square)
    for name, rows in (("links", links), ("betas", betas)):
        if len(rows) != gpus or any(len(row) != gpus for row in rows):
            raise FormatError(f"{name} must be a square of {gpus} ranks")
    alpha = _microseconds(fields.take("alpha", readers.number), "alpha")
    wires, vertices = [], hosts * gpus
    for src, dst in itertools.product(range(gpus), repeat=2):
        if links[dst][src] > 0 and src != dst:
            speed = _speed(size, betas[dst][src], f"betas[{dst}][{src}]")
            wires += [(h * gpus + src, h * gpus + dst, alpha, speed) for h in range(hosts)]
    if hosts > 1:
        between, vertices = _between(fields, size, hosts, gpus)
        wires += between
    src, dst, alphas, speeds = zip(*wires, strict=True) if wires else ((),) * 4
    name = fields.take("name", readers.text, "")
    try:
        return Topology(
            hosts * gpus, np.asarray(src, int), np.asarray(dst, int), np.asarray(alphas, float),
            np.asarray(speeds, float), num_vertices=vertices, name=name,
        )  # fmt: skip
    except JaxcollError as error:
        raise FormatError(f"the network is refused: {error}") from error


def _between(fields: readers.Fields, size: float, hosts: int, gpus: int) -> tuple[list, int]:
    """Links of NICs and the network between hosts, and the number of vertices with them."""
    nics = fields.take("nics_per_node", readers.whole(-1, 256))
    if nics < 1:
        raise FormatError(f"the file has no NICs for {hosts} hosts: nics_per_node is {nics}")
    far = _microseconds(fields.take("remote_alpha", readers.number), "remote_alpha")
    speed = _speed(size, fields.take("remote_beta", readers.number), "remote_beta")
    first, middle = hosts * gpus, hosts * (gpus + nics)
    wires = []
    # A message passes two NICs and the network. Half of its latency is given to each of the two
    # wires in the middle, and every wire on the way has its bandwidth.
    for rank in range(hosts * gpus):
        nic = first + rank // gpus * nics + rank % gpus * nics // gpus
        wires += [(rank, nic, 0.0, speed), (nic, rank, 0.0, speed)]
    for nic in range(first, middle):
        wires += [(nic, middle, far / 2, speed), (middle, nic, far / 2, speed)]
    return wires, middle + 1


def _microseconds(value: float, name: str) -> float:
    if not 0 <= value <= 1e9:
        raise FormatError(f"{name} must be a number of microseconds, got {value:g}")
    return value / 1e6


def _speed(nbytes: float, beta: float, name: str) -> float:
    """Bytes per second of a message that takes ``beta`` microseconds."""
    if not 1e-6 <= beta <= 1e12:
        raise FormatError(f"{name} must be above 0, microseconds of a message, got {beta:g}")
    return nbytes * 1e6 / beta


# ---------------------------------------------------------------------- files


def save(path: str | os.PathLike, obj: Topology | Schedule, dialect: str = "msccl") -> None:
    """Write ``dumps(obj)``, all or nothing. An OSError if it cannot be written."""
    write_text(path, dumps(obj, dialect))


def load(
    path: str | os.PathLike,
    *,
    alpha: float | None = None,
    bandwidth: float | None = None,
    max_bytes: int = MAX_BYTES,
) -> Topology | Schedule:
    """The network or schedule of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes, alpha=alpha, bandwidth=bandwidth)
