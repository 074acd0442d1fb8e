"""Topology: a network as immutable columns of directed links between ranks and switches."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcoll import failures
from jaxcoll.devices import describe_devices
from jaxcoll.errors import TopologyError, named
from jaxcoll.failures import Losses, Wiring
from jaxcoll.grid import Grid, Placement, checked_placement
from jaxcoll.links import (
    MAX_VERTICES,
    Links,
    automorphisms,
    canonical_links,
    canonical_order,
    warn_of_units,
)
from jaxcoll.links.capable_switches import NOTHING, InNetwork, chosen
from jaxcoll.networkx_graphs import describe_graph, make_graph
from jaxcoll.numerics import checks
from jaxcoll.numerics.connectivity import check_connected, check_survivors
from jaxcoll.numerics.rational import Number
from jaxcoll.pictures import network_card

if TYPE_CHECKING:  # who has such a graph has the package, and nothing else needs it
    import networkx as nx


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Topology(Links):
    """A network of directed links.

    Vertices 0..num_ranks-1 are the ranks, num_ranks..num_vertices-1 are switches, which forward.
    Some switches may copy and add as well (``in_network``): bounds take this into account, and
    ``simulate_in_network`` times it, but schedules use switches to forward only. Several links may
    join the same two vertices. Links are kept in canonical order (by src, dst, alpha, bandwidth),
    whatever order is given. Every rank must reach every other.

    Two topologies are equal, and have the same hash, when their vertices and links are the same
    exact numbers and the same switches copy and add; names, grid and generators are descriptions
    and do not count.

    Attributes:
        num_ranks: number of ranks n, at least 1.
        src: source vertex of each link, int32 of shape (links,).
        dst: destination vertex of each link, int32 of shape (links,).
        alpha: latency of each link in seconds, float64 of shape (links,), at least 0.
        bandwidth: bandwidth of each link in bytes per second, float64 of shape (links,), above 0.
            May be given as integers or ``Fraction``; ``exact_bandwidth`` keeps them exact.
        num_vertices: ranks and switches together; num_ranks when omitted.
        name: a label for tables.
        vertex_names: one label per vertex, or empty.
        grid: the grid of coordinates of the ranks, where there is one and ranks are numbered in its
            order.
        placement: the grid and the rank at each position; made from ``grid`` when omitted. A
            placement in order gives the grid, too.
        generators: automorphisms as vertex permutations (``generators[g][v]`` is v's image);
            together they generate the known symmetry of the network.
        in_network: which switches copy and which add; none when omitted.
        allow_unreachable: whether ranks may be unable to reach each other. Only
            ``simulate_messages`` and the drawings take such networks; everything else refuses them.

    Raises:
        TopologyError: no ranks, unequal columns, a vertex out of range, a self-loop, alpha < 0,
            bandwidth <= 0, NaN or infinity, ranks that cannot reach each other, a generator that
            is not an automorphism, a rank that is said to copy or add in the network.

    Warns:
        AssumptionWarning: numbers that look like microseconds and gigabytes per second.
    """

    num_ranks: int
    src: np.ndarray
    dst: np.ndarray
    alpha: np.ndarray
    bandwidth: np.ndarray
    num_vertices: int = 0
    name: str = ""
    vertex_names: tuple[str, ...] = ()
    grid: Grid | None = None
    placement: Placement | None = None
    generators: tuple[tuple[int, ...], ...] = ()
    allow_unreachable: bool = False
    in_network: InNetwork = NOTHING
    _exact_bandwidth: tuple[Fraction, ...] | None = dataclasses.field(default=None, init=False)
    _whole: tuple[Topology, np.ndarray] | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        put = functools.partial(object.__setattr__, self)
        limits = {"error": TopologyError, "most": MAX_VERTICES}
        put("num_ranks", checks.integer(self.num_ranks, "num_ranks", least=1, **limits))
        vertices = checks.integer(self.num_vertices, "num_vertices", least=0, **limits)
        put("num_vertices", vertices or self.num_ranks)
        if self.num_vertices < self.num_ranks:
            raise TopologyError(
                f"num_vertices counts ranks and switches: {self.num_vertices} is less than "
                f"{self.num_ranks} ranks"
            )
        put("name", checks.text(self.name, "name", TopologyError))
        given = (self.src, self.dst, self.alpha, self.bandwidth)
        columns, exact = canonical_links(self.num_vertices, *given)
        for name, column in columns.items():
            put(name, column)
        put("_exact_bandwidth", exact)
        warn_of_units(self.alpha, self.bandwidth)
        names = checks.members(self.vertex_names, "vertex_names", TopologyError)
        put("vertex_names", tuple(str(name) for name in names))
        checks.flag_fields(self, TopologyError, "allow_unreachable")
        if self.vertex_names and len(self.vertex_names) != self.num_vertices:
            raise TopologyError(
                f"vertex_names needs one name for each of {self.num_vertices} vertices, "
                f"got {len(self.vertex_names)}"
            )
        grid, placement = checked_placement(self.grid, self.placement, self.num_ranks)
        checks.put(self, grid=grid, placement=placement)
        links = (self.src, self.dst, self.alpha, self.bandwidth, self._exact_bandwidth)
        generators = automorphisms(self.generators, self.num_ranks, self.num_vertices, links)
        checks.put(self, generators=generators)
        checks.instance(self.in_network, InNetwork, "in_network", TopologyError)
        self.in_network.check(self.num_ranks, self.num_vertices)
        if not all(self.in_network.kept_by(generators)):
            raise TopologyError(
                "a generator must take switches that copy to switches that copy, and those "
                "that add to those that add"
            )
        # Last, since it is what takes longest.
        if not self.allow_unreachable:
            self.check_connected()

    def check_connected(self) -> None:
        """Refuse a network in which some rank cannot reach another.

        Raises:
            TopologyError: naming two ranks without a path.
        """
        check_connected(self.num_ranks, self.num_vertices, self.src, self.dst)

    # ------------------------------------------------------------------ others from this one

    def transpose(self) -> Topology:
        """The network with every link reversed; made once.

        A sum run backwards is a copy: switches that add copy in the transpose, and switches that
        copy add.
        """
        return self._transposed

    def transpose_links(self) -> np.ndarray:
        """The link of ``transpose()`` that each link becomes, int64 of shape (links,)."""
        return self._transposed_links

    # Every reduction is a gather on the transposed network, so one search asks for it dozens of
    # times. It does not hold this network in turn, or neither would be freed.

    @functools.cached_property
    def _transposed(self) -> Topology:
        back = self._moved(self.dst, self.src, np.arange(self.num_vertices))
        # Reductions are gathers here: a switch copies the sums that it adds on the other network.
        return rebuilt(back, in_network=back.in_network.transpose()) if self.in_network else back

    @functools.cached_property
    def _transposed_links(self) -> np.ndarray:
        positions = self._positions(self.dst, self.src)
        positions.setflags(write=False)
        return positions

    def relabel(self, permutation: Sequence[int] | np.ndarray) -> Topology:
        """The network in which rank r is called ``permutation[r]``; switches keep their numbers.

        Raises:
            TopologyError: not a permutation of the ranks.
        """
        image = self._vertex_image(permutation)
        return self._moved(image[self.src], image[self.dst], image)

    def relabel_links(self, permutation: Sequence[int] | np.ndarray) -> np.ndarray:
        """The link of ``relabel(permutation)`` that each link becomes, int64 of shape (links,)."""
        image = self._vertex_image(permutation)
        return self._positions(image[self.src], image[self.dst])

    def without(
        self,
        links: Iterable[int | tuple[int | str, int | str]] = (),
        ranks: Iterable[int | str] = (),
        switches: Iterable[int | str] = (),
    ) -> Topology:
        """The network that is left when links, ranks or switches fail.

        Surviving ranks are numbered from 0 in their old order: rank r is the r-th that survives.
        The links of a failed rank fail with it; switches stay. The grid stays if the survivors fill
        one with all its links, as in a torus without a row. Generators are dropped.

        Args:
            links: numbers of links, or pairs (u, v) for all links from vertex u to vertex v; a
                wire that fails both ways is two.
            ranks: ranks, or names of ranks or of hosts, whose switches fail with them: "host 1".
            switches: numbers of vertices, or names: "rail 2".

        Raises:
            TopologyError: a link, rank, switch or name that does not exist, a link of a rank that
                is removed, no survivors, or survivors in several parts, which the message names.
        """
        # Checked before it is built, so that the error names ranks by their old numbers.
        lost = failures.lost_vertices(self._wiring, ranks, switches)
        gone = failures.gone_links(self._wiring, links, lost)
        stays = np.flatnonzero(~lost[: self.num_ranks])
        check_survivors(self.num_vertices, stays, self.src, self.dst, gone)
        image, kept = np.cumsum(~lost) - 1, np.flatnonzero(~gone)
        src, dst = self.src[kept], self.dst[kept]
        left = Topology(
            len(stays),
            image[src],
            image[dst],
            self.alpha[kept],
            [self.exact_bandwidth[i] for i in kept],  # type: ignore[arg-type]
            num_vertices=int((~lost).sum()),
            vertex_names=tuple(itertools.compress(self.vertex_names, ~lost)),
            placement=failures.placement_left(self.placement, lost, src, dst),
            in_network=self.in_network.moved(np.where(lost, -1, image)),
        )
        return self._became(left, np.flatnonzero(~lost))

    def scaled(self, factors: Mapping[Any, Number]) -> Topology:
        """The network with links that are slower or faster than they were.

        A cable at half its speed is ``scaled({(u, v): 0.5, (v, u): 0.5})``, and a rail at half its
        speed ``scaled({"rail 2": 0.5})``. Ranks, their grid and latencies stay; generators are
        dropped.

        Args:
            factors: factors of the bandwidth, above 0, by link number, or by pair (u, v) for all
                links from vertex u to vertex v, or by the name of a rank, switch or host for all
                links between it and the others. A link that is named twice is scaled twice.

        Raises:
            TopologyError: a link or name that does not exist, or a factor that is not above 0;
                ``without`` leaves out links that are down.
        """
        speeds = failures.scaled_speeds(self._wiring, self.exact_bandwidth, factors)
        left = rebuilt(self, bandwidth=speeds, name="", generators=())
        return self._became(left, np.arange(self.num_vertices))

    def with_in_network(self, copying: Any = (), adding: Any = ()) -> Topology:
        """The network with the same links, whose switches do exactly this besides forwarding.

        Args:
            copying: switches that copy: True for all, or numbers of vertices or their names.
            adding: switches that add, likewise. InfiniBand with SHARP: ``("network",)`` for both.

        Raises:
            TopologyError: a vertex that is a rank or does not exist, a name that no switch has.
        """
        known = (self.vertex_names, self.num_ranks, self.num_vertices)
        does = InNetwork(*(chosen(each, *known) for each in (copying, adding)))
        does.check(self.num_ranks, self.num_vertices)
        if does == self.in_network:
            return self
        kept = tuple(itertools.compress(self.generators, does.kept_by(self.generators)))
        changed = rebuilt(self, in_network=does, generators=kept)
        object.__setattr__(changed, "_whole", self._whole)
        return changed

    def forwarding_only(self) -> Topology:
        """The network as schedules use it, whose switches neither copy nor add; made once."""
        return self._forwarding_only

    @functools.cached_property
    def _forwarding_only(self) -> Topology:
        return self.with_in_network()

    @property
    def whole(self) -> Topology:
        """The network to which ``without`` and ``scaled`` were applied; itself if neither was."""
        return self if self._whole is None else self._whole[0]

    @property
    def whole_vertices(self) -> np.ndarray:
        """The number in ``whole`` of each vertex, int64 of shape (vertices,)."""
        return np.arange(self.num_vertices) if self._whole is None else self._whole[1]

    @functools.cached_property
    def losses(self) -> Losses:
        """Links, ranks and switches of ``whole`` gone or of another speed; false if none."""
        whole, left = ((each._wiring, each.exact_bandwidth) for each in (self.whole, self))
        return failures.losses(*whole, *left, self.whole_vertices.tolist())

    @property
    def _wiring(self) -> Wiring:
        return Wiring(self.num_ranks, self.num_vertices, self.vertex_names, self.src, self.dst)

    def _became(self, left: Topology, vertices: np.ndarray) -> Topology:
        """A network that is left of this one, told what it was and named after it."""
        whole = self.whole
        # Always beside the first network, however many failures came one after another.
        object.__setattr__(left, "_whole", (whole, self.whole_vertices[vertices]))
        object.__setattr__(left, "name", left.losses.name_after(whole.name))
        return left

    def _vertex_image(self, permutation: Sequence[int] | np.ndarray) -> np.ndarray:
        image = checks.rank_permutation(permutation, self.num_ranks, "permutation", TopologyError)
        return np.concatenate([image, np.arange(self.num_ranks, self.num_vertices)])

    def _moved(self, src: np.ndarray, dst: np.ndarray, image: np.ndarray) -> Topology:
        # Whatever is known of the vertices moves with them: v becomes image[v], and a symmetry g
        # becomes image g image^-1.
        back = np.argsort(image)
        return rebuilt(
            self,
            src=src,
            dst=dst,
            vertex_names=tuple(self.vertex_names[v] for v in back) if self.vertex_names else (),
            placement=None if self.placement is None else self.placement.relabel(image),
            generators=tuple(tuple(int(image[g[v]]) for v in back) for g in self.generators),
            in_network=self.in_network.moved(image),
        )

    def _positions(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Where each link stands among the moved ones, which are in canonical order again."""
        columns = (src, dst, self.alpha, self.bandwidth, self._exact_bandwidth)
        return np.argsort(canonical_order(*columns))

    # ------------------------------------------------------------------ equality

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the content (ranks, vertices, links, in_network), as 64 hexadecimal digits."""
        does = self.in_network
        if not does:
            return self.links_digest
        return sha256(f"{self.links_digest} {does.copying} {does.adding}".encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Topology) else NotImplemented

    def __hash__(self) -> int:
        return int(self.digest[:15], 16)

    def __repr__(self) -> str:
        switches = "" if self.is_direct else f", {self.num_vertices - self.num_ranks} switches"
        label = f"{named(self.name)}: " if self.name else ""
        does = f" ({self.in_network})" if self.in_network else ""
        return f"Topology({label}{self.num_ranks} ranks{switches}{does}, {self.num_links} links)"

    def _repr_html_(self) -> str:
        columns = (self.num_ranks, self.num_vertices, self.src, self.dst, self.bandwidth)
        missing = self.losses.lines() if self.losses else []
        return network_card(self.name, columns, self.speeds[0], self.placement, missing)

    # ------------------------------------------------------------------ networkx

    def to_networkx(self) -> nx.DiGraph:
        """The same network as a ``DiGraph`` (``MultiDiGraph`` where links are parallel).

        Vertices carry ``kind`` ("rank" or "switch") and, if named, ``name``; switches ``copies``
        and ``adds``, where they do; links ``alpha`` in seconds and ``bandwidth`` in bytes per
        second (a ``Fraction`` where a float is inexact).
        """
        speeds = self.bandwidth.tolist() if self._exact_bandwidth is None else self._exact_bandwidth
        links = zip(self.src.tolist(), self.dst.tolist(), self.alpha.tolist(), speeds, strict=True)
        kinds = ["rank"] * self.num_ranks + ["switch"] * (self.num_vertices - self.num_ranks)
        graph = make_graph(self.name, kinds, self.vertex_names, links, self.has_parallel_links)
        does = {"copies": self.in_network.copying, "adds": self.in_network.adding}
        for what, switches in does.items():
            for v in switches:
                graph.nodes[v][what] = True
        return graph

    @classmethod
    def from_networkx(
        cls,
        graph: nx.Graph,
        *,
        alpha: float | None = None,
        bandwidth: float | Fraction | None = None,
    ) -> Topology:
        """The network of a networkx graph; an undirected edge is a link each way.

        Nodes with ``kind="switch"`` (in any case) become switches, those with ``kind="rank"`` or
        none ranks, each in the order of the graph (sorted when all labels are integers). Labels
        other than 0..V-1 become vertex names. Switches with ``copies=True`` copy, those with
        ``adds=True`` add.

        Args:
            graph: any networkx graph.
            alpha: seconds, for edges without an ``alpha`` attribute.
            bandwidth: bytes per second, for edges without a ``bandwidth`` attribute.

        Raises:
            TopologyError: no graph, an edge without a value, an unknown kind, or refused links.
        """
        return cls(**describe_graph(graph, alpha, bandwidth))

    # ------------------------------------------------------------------ devices

    @classmethod
    def from_devices(
        cls,
        devices: Sequence,
        *,
        alpha: float | None = None,
        bandwidth: float | None = None,
        wrap: Sequence[bool] | None = None,
        within: Sequence | None = None,
    ) -> Topology:
        """The network of JAX devices, rank i being ``devices[i]``.

        Devices with ``coords`` (TPU) form a mesh or torus of their coordinates; the rank order is
        the order given, so a permuted list gives the same wires under other rank numbers. A subgrid
        of a slice has the links between its members only: a dimension closes into a ring where the
        subgrid spans the slice. Other devices are linked to one switch per host, or to each
        other where their kind is wired so, and to a network switch if there are several hosts.
        ``jaxcoll.device_kinds.DEVICE_KINDS`` has the assumed wiring and speeds; for a kind that it
        does not have, an ``AssumptionWarning`` says what is assumed.

        Args:
            devices: ``jax.Device`` objects, or anything with ``coords`` / ``process_index``.
            alpha: seconds per link, instead of the device kind's.
            bandwidth: bytes per second per link, instead of the device kind's.
            wrap: for TPU slices, which dimensions close into rings, instead of the kind's rule.
            within: for TPUs, all devices of the slice, to whose dimensions ``wrap`` then refers;
                those of the devices' client when omitted, or the given devices if they have none.

        Raises:
            TopologyError: no devices, objects of another type, devices of several kinds,
                coordinates that do not fill a grid.
        """
        stated = {"alpha": alpha, "bandwidth": bandwidth, "wrap": wrap, "within": within}
        return cls(**describe_devices(devices, **stated))

    @classmethod
    def from_mesh(
        cls,
        mesh,
        *,
        down: Iterable = (),
        alpha: float | None = None,
        bandwidth: float | None = None,
        wrap: Sequence[bool] | None = None,
        within: Sequence | None = None,
    ) -> Topology:
        """The network of a ``jax.sharding.Mesh``, ranks in the order of ``mesh.devices.flat``.

        Other arguments and errors are those of ``from_devices``.

        Args:
            down: links that are down, as ``without`` takes them or as pairs of devices.
        """
        if not hasattr(mesh, "devices"):
            raise TopologyError(
                f"from_mesh takes a jax.sharding.Mesh, got {checks.shown(mesh)}; a list of devices "
                "goes to from_devices"
            )
        devices = list(np.asarray(mesh.devices).flat)
        made = cls.from_devices(devices, alpha=alpha, bandwidth=bandwidth, wrap=wrap, within=within)
        links = failures.with_ranks(down, devices)
        return made.without(links) if links else made


def rebuilt(topology: Topology, **changed: Any) -> Topology:
    """A copy of the network with some of the arguments of ``Topology`` changed."""
    # From exact bandwidths where there are some: a copy made from floats would be another network.
    exact = topology._exact_bandwidth
    kept = ("src", "dst", "alpha", "num_vertices", "name", "vertex_names", "placement")
    more = ("generators", "allow_unreachable", "in_network")
    same = {name: getattr(topology, name) for name in (*kept, *more)}
    same["bandwidth"] = topology.bandwidth if exact is None else exact
    return Topology(topology.num_ranks, **same | changed)


def connected(topology) -> Topology:
    """A network in which every rank reaches every other, itself.

    Raises:
        TopologyError: not a ``Topology``, or one in which some rank cannot reach another.
    """
    checks.instance(topology, Topology, "topology", TopologyError)
    if topology.allow_unreachable:
        topology.check_connected()
    return topology
