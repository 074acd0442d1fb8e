"""GraphML and GEXF: the files that graph editors and networkx exchange, read by networkx.

Edges have the attributes ``alpha`` (seconds) and ``bandwidth`` (bytes per second), or those of the
arguments; nodes of ``kind`` "switch" are switches, all others ranks, as in
``Topology.from_networkx``. An undirected edge is a link each way. Such files do not hold the grid
of the ranks or the permutations that keep the network, so synthesizers for grids need the network
by name or as JSON. Nothing else here needs networkx: ``pip install networkx``.

Before networkx sees a file, its XML is read within bounds and without entities (``io/xml.py``).
"""

from __future__ import annotations

import io
import os
from fractions import Fraction
from typing import Any

from jaxcoll.errors import FormatError, JaxcollError, shown
from jaxcoll.io.files import load_text, write_text
from jaxcoll.io.xml import parsed
from jaxcoll.numerics import checks
from jaxcoll.topology import Topology

MAX_BYTES = 2**25
FORMATS = ("graphml", "gexf")
_MOST_ELEMENTS = 2**18
# Elements that hold text, whereas others hold only elements; y: are those of the editor yEd.
_WITH_TEXT = frozenset(
    ("data", "default", "desc", "creator", "description", "keywords", "options", "y:NodeLabel",
     "y:EdgeLabel", "y:GroupNode", "dc:creator")
)  # fmt: skip


def _networkx() -> Any:
    try:
        import networkx
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "GraphML and GEXF are read by the package networkx; type: pip install networkx",
            name="networkx",
        ) from None
    return networkx


def loads(
    text: str, *, alpha: float | None = None, bandwidth: float | Fraction | None = None
) -> Topology:
    """The network of GraphML or GEXF text.

    Args:
        alpha: seconds for edges without an ``alpha``.
        bandwidth: bytes per second for edges without a ``bandwidth``.

    Raises:
        FormatError: the format is another one, there are several graphs, or
            ``Topology.from_networkx`` refuses the graph.
        ModuleNotFoundError: networkx is not installed.
    """
    checks.text(text, "text", FormatError)
    nx = _networkx()
    start = text.lstrip("\ufeff \t\r\n")
    form = "gexf" if "<gexf" in start[:4096] else "graphml"
    root = parsed(start, form, _MOST_ELEMENTS, _WITH_TEXT)
    graphs = sum(1 for _ in root.each("graph"))
    if graphs != 1:
        raise FormatError(f"expected one <graph> in <{form}>, got {graphs}")
    data = io.BytesIO(start.encode())
    try:
        graph = nx.read_graphml(data) if form == "graphml" else nx.read_gexf(data)
    except Exception as error:  # networkx checks little, and raises errors of Python
        what = shown(" ".join(str(error).split()))
        raise FormatError(f"networkx does not read it: {type(error).__name__}: {what}") from None
    # Files name nodes by texts: "10" would come before "2", and ranks would change places.
    numbers = {str(i): i for i in range(len(graph))}
    if numbers.keys() == set(graph):  # a network without names stays without them
        graph = nx.relabel_nodes(graph, numbers)
    try:
        return Topology.from_networkx(graph, alpha=alpha, bandwidth=bandwidth)
    except FormatError:
        raise
    except JaxcollError as error:
        raise FormatError(f"the graph is refused: {error}") from error


def dumps(topology: Topology, form: str = "graphml") -> str:
    """A network as GraphML or GEXF.

    Raises:
        FormatError: the form is another one, no float holds a bandwidth, or names have characters
            that XML cannot hold.
        ModuleNotFoundError: networkx is not installed.
    """
    checks.instance(topology, Topology, "topology", FormatError)
    checks.choice(form, FORMATS, "form", FormatError)
    nx = _networkx()
    graph = topology.to_networkx()
    for u, v, data in graph.edges(data=True):
        exact = data["bandwidth"]
        data["bandwidth"] = float(exact)
        if Fraction(data["bandwidth"]) != exact:
            raise FormatError(
                f"the bandwidth of {u}->{v}, {exact}, does not fit the float that files have"
            )
    # networkx writes any character, but readers refuse control characters and unpaired surrogates.
    names = [topology.name, *topology.vertex_names]
    if any(not (c.isprintable() or c in " ") or ord(c) > 0xFFFD for name in names for c in name):
        raise FormatError("a name has characters that XML does not hold")
    make = nx.generate_graphml if form == "graphml" else nx.generate_gexf
    return "\n".join(make(graph)) + "\n"


def save(path: str | os.PathLike, topology: Topology) -> None:
    """Write a network, all or nothing: GEXF if the name ends with .gexf, else GraphML.

    Raises:
        OSError: the file cannot be written.
    """
    write_text(path, dumps(topology, "gexf" if str(path).endswith(".gexf") else "graphml"))


def load(
    path: str | os.PathLike,
    *,
    alpha: float | None = None,
    bandwidth: float | Fraction | None = None,
    max_bytes: int = MAX_BYTES,
) -> Topology:
    """The network of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes, alpha=alpha, bandwidth=bandwidth)
