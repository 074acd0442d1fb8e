"""The library's own format: topologies, collectives and schedules as versioned JSON.

A file is one object whose ``format`` names its kind and version, for example
``"jaxcoll.schedule/1"``. Columns are lists. Numbers are written so that reading gives the same
floats; a rational that no float holds is the string ``"p/q"``. The same object always gives the
same bytes.

A schedule by orbits (``jaxcoll.orbit-schedule/1``) is the schedule of one rank's shard, and the
generators of the translations that move it.

Files are not trusted. A ``FormatError`` refuses text that is truncated, too large or too deep,
repeated or unknown keys, NaN or infinity, numbers of the wrong type, and anything that
``Topology``, ``Collective`` or ``Schedule`` would refuse.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable

import numpy as np

from jaxcoll import fields as readers
from jaxcoll.collective import Collective
from jaxcoll.errors import FormatError, JaxcollError
from jaxcoll.grid import Grid, Placement
from jaxcoll.io.files import MAX_BYTES, load_text, write_text
from jaxcoll.links import canonical_order, exact_column
from jaxcoll.links.capable_switches import InNetwork
from jaxcoll.numerics.rational import fits_float
from jaxcoll.orbits import OrbitSchedule, Translations
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule, decode_provenance, encode_provenance
from jaxcoll.topology import Topology, connected

TOPOLOGY = "jaxcoll.topology/1"
COLLECTIVE = "jaxcoll.collective/1"
SCHEDULE = "jaxcoll.schedule/1"
ORBIT_SCHEDULE = "jaxcoll.orbit-schedule/1"

# What a file of this format holds.
Written = Topology | Collective | Schedule

# Limits that do not depend on the size of the file: vertices of a network, and the ranks and chunks
# of a collective without a schedule.
MAX_FREE_VERTICES = 2**16
MAX_RANKS = 2**20
MAX_CHUNKS = 2**26


def save(path: str | os.PathLike, obj: Written) -> None:
    """Write ``dumps(obj)``, all or nothing. Raises an OSError if it cannot be written."""
    write_text(path, dumps(obj))


def load(path: str | os.PathLike, *, max_bytes: int = MAX_BYTES) -> Written:
    """The object that ``save`` has written; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes)


def dumps(obj: Written) -> str:
    """An object as JSON text, one line per field.

    Raises:
        FormatError: the object has another type, or provenance that JSON cannot hold.
        TopologyError: the network has ranks that cannot reach each other.
    """
    if isinstance(obj, Topology):
        connected(obj)
        fields = _write_topology(obj)
    elif isinstance(obj, Collective):
        fields = _write_collective(obj)
    elif isinstance(obj, OrbitSchedule):
        fields = _write_orbit_schedule(obj)
    elif isinstance(obj, Schedule):
        fields = _write_schedule(obj)
    else:
        raise FormatError(
            f"expected a Topology, Collective or Schedule, got "
            f"{type(obj).__name__}; other objects have no JSON form"
        )
    compact = {"separators": (",", ":"), "allow_nan": False}
    lines = [f"{json.dumps(key)}: {json.dumps(value, **compact)}" for key, value in fields.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def loads(text: str) -> Written:
    """The object that ``dumps`` has written.

    Raises:
        FormatError: the text is not one well-formed object of a known format and version. If a
            constructor refused the content, its error is the cause.
    """
    fields = readers.parse(text)
    if not isinstance(fields, dict) or "format" not in fields:
        raise FormatError(
            f'expected a JSON object with a "format", one of {", ".join(_READERS)}; '
            f"got {readers.glimpse(fields)}"
        )
    name = fields["format"]
    reader = _READERS.get(name) if isinstance(name, str) else None
    if reader is None:
        raise FormatError(
            f'"format" is {readers.glimpse(name)}; this version reads {", ".join(_READERS)}: '
            f"convert the file or use the version that wrote it"
        )
    try:
        return reader(fields)
    except FormatError:
        raise
    except JaxcollError as error:
        raise FormatError(f"the content of this {name} is refused: {error}") from error


# ---------------------------------------------------------------------- topologies


def _write_topology(topology: Topology) -> dict:
    placement, grid = topology.placement, None
    if placement is not None:
        grid = {"shape": list(placement.grid.shape), "wrap": list(placement.grid.wrap)}
        if not placement.is_in_order:
            grid["ranks"] = list(placement.ranks)
    # The library holds rates such as 400/3 GB/s exactly, which no float does; bounds that are
    # compared exactly would differ after reading. Few rates are distinct, so each is checked once.
    fits = {exact: fits_float(exact) for exact in set(topology.exact_bandwidth)}
    rates = zip(topology.bandwidth.tolist(), topology.exact_bandwidth, strict=True)
    said = {
        "format": TOPOLOGY,
        "name": str(topology.name),
        "num_ranks": topology.num_ranks,
        "num_vertices": topology.num_vertices,
        "src": topology.src.tolist(),
        "dst": topology.dst.tolist(),
        "alpha": topology.alpha.tolist(),
        "bandwidth": [b if fits[exact] else readers.encode_rational(exact) for b, exact in rates],
        "vertex_names": list(topology.vertex_names),
        "grid": grid,
        "generators": [[int(v) for v in generator] for generator in topology.generators],
    }
    # Only if a switch copies or adds, so that other files keep their form.
    does = topology.in_network
    more = {"in_network": {"copying": list(does.copying), "adding": list(does.adding)}}
    return said | more if does else said


def _read_topology(value: object, where: str = "topology") -> Topology:
    return _read_network(value, where)[0]


def _read_network(value: object, where: str) -> tuple[Topology, np.ndarray]:
    """A network, and the number in it of each link of the file, int64 of shape (links,).

    ``Topology`` sorts its links, so the file's link numbers must be mapped.
    """
    fields = readers.Fields(value, where)
    fields.take("format", readers.exactly(TOPOLOGY))
    src = fields.take("src", readers.column(readers.INT32))
    # Ranks that reach each other have a link each; switches may have none. If more vertices were
    # allowed, a file of 100 bytes could ask for gigabytes.
    most = MAX_FREE_VERTICES + 2 * len(src)
    num_ranks = fields.take("num_ranks", readers.whole(1, most))
    described = {
        "num_vertices": fields.take("num_vertices", readers.whole(num_ranks, most), num_ranks),
        "name": fields.take("name", readers.text, ""),
        "vertex_names": fields.take("vertex_names", readers.list_of(readers.text), ()),
        "generators": fields.take("generators", readers.list_of(_read_generator), ()),
        "in_network": fields.take("in_network", _read_in_network, InNetwork()),
    }
    grid = fields.optional("grid", _read_placement)
    described["placement" if isinstance(grid, Placement) else "grid"] = grid
    # ``Topology`` checks the values of the columns; their types and sizes are checked here, before
    # they take memory.
    columns = [
        src,
        fields.take("dst", readers.column(readers.INT32)),
        np.asarray(fields.take("alpha", readers.list_of(readers.number)), float),
        fields.take("bandwidth", readers.list_of(readers.rational)),
    ]
    fields.end()
    topology = Topology(num_ranks, *columns, **described)
    src, dst, alpha, bandwidth = columns
    order = canonical_order(
        src, dst, alpha, np.asarray(bandwidth, float), exact_column(bandwidth, "bandwidth")
    )
    return topology, np.argsort(order)


def _read_in_network(value: object, where: str) -> InNetwork:
    fields = readers.Fields(value, where)
    does = [fields.take(name, _read_generator, ()) for name in ("copying", "adding")]
    fields.end()
    return InNetwork(*does)


def _read_generator(value: object, name: str) -> tuple[int, ...]:
    return tuple(readers.column(readers.INT32)(value, name).tolist())


def _read_placement(value: object, where: str) -> Grid | Placement:
    fields = readers.Fields(value, where)
    shape = fields.take("shape", readers.list_of(readers.whole(1, readers.INT64)))
    wrap = fields.take("wrap", readers.list_of(readers.flag))
    ranks = fields.optional("ranks", readers.column(readers.INT32))
    fields.end()
    grid = Grid(shape, wrap)
    return grid if ranks is None else Placement(grid, tuple(ranks.tolist()))


# ---------------------------------------------------------------------- collectives


def _write_collective(collective: Collective) -> dict:
    groups = [list(group) for group in collective.groups]
    said = {
        "format": COLLECTIVE,
        "kind": collective.kind,
        "num_ranks": collective.num_ranks,
        "chunks_per_shard": collective.chunks_per_shard,
        "groups": groups if collective.is_grouped else None,
        "root": collective.root,
    }
    pairs = collective.pair_shares
    if pairs is not None:
        said["shares"] = pairs.as_lists()
    elif collective.rank_shares is not None:
        said["shares"] = list(collective.rank_shares)
    # Written only if it is not the default, so that older programs can read the other files.
    return said if collective.helpers else said | {"helpers": False}


def _read_shares(value: object, name: str) -> tuple[int, ...] | np.ndarray:
    """A number for each rank, or a row for each source; ``Collective`` checks which it takes."""
    if not isinstance(value, list) or not value or not isinstance(value[0], list):
        return _read_generator(value, name)
    rows = readers.list_of(readers.column(readers.INT64, np.int64))(value, name)
    if {len(row) for row in rows} != {len(rows)}:
        raise FormatError(f"{name} of pairs must be as many numbers in each row as there are rows")
    return np.stack(rows)


def _read_collective(value: object, where: str = "collective") -> Collective:
    fields = readers.Fields(value, where)
    fields.take("format", readers.exactly(COLLECTIVE))
    arguments = (
        fields.take("kind", readers.text),
        fields.take("num_ranks", readers.whole(1, MAX_RANKS)),
        fields.take("chunks_per_shard", readers.whole(1, readers.INT32), 1),
        fields.optional("groups", readers.list_of(_read_generator)),
        fields.optional("root", readers.whole_or_several(0, readers.INT32)),
        fields.optional("shares", _read_shares),
        fields.take("helpers", readers.flag, True),
    )
    fields.end()
    return Collective(*arguments)


def _read_collective_alone(value: object, where: str = "collective") -> Collective:
    collective = _read_collective(value, where)
    count = collective.num_chunks
    # In a schedule ``check_claims`` compares the chunks with its sends; here there are no sends.
    if count > MAX_CHUNKS:
        raise FormatError(f"{where} has {count} chunks; at most {MAX_CHUNKS} are read")
    return collective


# ---------------------------------------------------------------------- schedules


def _write_schedule(schedule: Schedule) -> dict:
    edges = schedule.edges
    return {
        "format": SCHEDULE,
        "topology": _write_topology(schedule.topology),
        "collective": _write_collective(schedule.collective),
        "edges": {
            "src": edges.src.tolist(),
            "dst": edges.dst.tolist(),
            "path_ptr": edges.path_ptr.tolist(),
            "path_link": edges.path_link.tolist(),
        },
        "step_ptr": schedule.step_ptr.tolist(),
        "edge": schedule.edge.tolist(),
        "chunk": schedule.chunk.tolist(),
        "reduce": schedule.reduce.astype(np.int8).tolist(),
        "provenance": encode_provenance(schedule.provenance),
    }


def _read_schedule(value: object, where: str = "schedule") -> Schedule:
    fields = readers.Fields(value, where)
    fields.take("format", readers.exactly(SCHEDULE))
    topology, link_image = fields.take("topology", _read_network)
    collective = fields.take("collective", _read_collective)
    edges = fields.take("edges", _read_edges)
    columns = (
        fields.take("step_ptr", readers.column(readers.INT64, np.int64)),
        fields.take("edge", readers.column(readers.INT32)),
        fields.take("chunk", readers.column(readers.INT32)),
        fields.take("reduce", readers.column(1, np.bool_)),
    )
    provenance = fields.take("provenance", decode_provenance, Provenance())
    fields.end()
    counts = collective.num_ranks, collective.num_chunks, collective.num_deliveries
    readers.check_claims(where, *counts, len(columns[1]))
    beyond = np.flatnonzero(edges.path_link >= topology.num_links)
    if len(beyond):
        raise FormatError(
            f"{where}.edges.path_link[{beyond[0]}] is {edges.path_link[beyond[0]]}; the network "
            f"has {topology.num_links} links, numbered from 0"
        )
    edges = dataclasses.replace(edges, path_link=link_image[edges.path_link])
    return Schedule(topology, collective, edges, *columns, provenance)


def _read_edges(value: object, where: str) -> Edges:
    fields = readers.Fields(value, where)
    columns = (
        fields.take("src", readers.column(readers.INT32)),
        fields.take("dst", readers.column(readers.INT32)),
        fields.take("path_ptr", readers.column(readers.INT64, np.int64)),
        fields.take("path_link", readers.column(readers.INT32)),
    )
    fields.end()
    return Edges(*columns)


def _write_orbit_schedule(schedule: OrbitSchedule) -> dict:
    return {
        "format": ORBIT_SCHEDULE,
        "translations": schedule.translations.generators.tolist(),
        "orbit": _write_schedule(schedule.orbit),
    }


def _read_orbit_schedule(value: object, where: str = "orbit schedule") -> OrbitSchedule:
    fields = readers.Fields(value, where)
    fields.take("format", readers.exactly(ORBIT_SCHEDULE))
    images = fields.take("translations", readers.list_of(readers.column(readers.INT32)))
    orbit = fields.take("orbit", _read_schedule)
    fields.end()
    vertices = orbit.topology.num_vertices
    if {len(image) for image in images} - {vertices}:
        raise FormatError(
            f"{where}.translations must have rows of {vertices} vertices, as the network has"
        )
    generators = np.asarray(images, np.int32).reshape(-1, vertices)
    return OrbitSchedule(orbit, Translations(orbit.topology, generators))


_READERS: dict[str, Callable[[object], Written]] = {
    TOPOLOGY: _read_topology,
    COLLECTIVE: _read_collective_alone,
    SCHEDULE: _read_schedule,
    ORBIT_SCHEDULE: _read_orbit_schedule,
}
