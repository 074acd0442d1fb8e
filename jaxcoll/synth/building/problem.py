"""A problem: a collective on a network, for a size; checked once, where it enters.

Everything below the two doors (``synthesize``, and ``Synthesizer.synthesize`` of one synthesizer)
takes a ``Problem`` and relies on it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from jaxcoll.collective import ROOTED, Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.paths import hop_distances
from jaxcoll.simulation.execution_costs import ExecutionCosts, costs_of
from jaxcoll.topology import Topology, connected

# PyTorch's DistributedDataParallel and ``jc.optax`` reduce gradients in buckets of 25 MiB.
BUCKET_BYTES = 25 * 2**20


@dataclasses.dataclass(frozen=True)
class Problem:
    """A collective on a network, for a size.

    Attributes:
        topology: every rank reaches every other.
        collective: for the topology's ranks; of one chunk per shard where ``any_chunks``.
        nbytes: bytes of a rank's buffer to be fast for; None where nobody said.
        seed: the same seed gives the same schedule.
        execution: the machine's charges on top of the links, or the backend whose shipped ones are
            meant; none when None.
        any_chunks: whether the number of chunks per shard is open, to be chosen.

    Raises:
        CollectiveError: something else than a collective, or one of too many chunks
            (``Collective.check_listed``), bytes not above 0, a bad seed.
        TopologyError: a network that is none, is not connected, or has other ranks than the
            collective.
    """

    topology: Topology
    collective: Collective
    nbytes: Number | None = None
    seed: int = 0
    execution: ExecutionCosts | str | None = None
    any_chunks: bool = False

    def __post_init__(self) -> None:
        connected(self.topology)
        checks.instance(self.collective, Collective, "collective", CollectiveError)
        if self.topology.num_ranks != self.collective.num_ranks:
            raise TopologyError(
                f"the collective is for {self.collective.num_ranks} ranks, {self.topology} has "
                f"{self.topology.num_ranks}"
            )
        self.collective.check_listed()
        checks.optional(self.nbytes, checks.positive, "nbytes", CollectiveError)
        checks.put(
            self,
            seed=checks.seed(self.seed, CollectiveError),
            execution=costs_of(self.execution, CollectiveError),
        )

    @classmethod
    def stated(
        cls,
        topology: Topology,
        collective: str | Collective,
        chunks: int | None = None,
        groups: Sequence[Sequence[int]] | None = None,
        root: int | None = None,
        **stated,
    ) -> Problem:
        """The problem of a collective, or of a kind with its own chunks, groups and root.

        Args:
            stated: the other fields.

        Raises:
            CollectiveError, TopologyError: as the class; also a ``Collective`` beside chunks,
                groups or a root.
        """
        connected(topology)
        checks.instance(collective, (str, Collective), "collective", CollectiveError)
        if isinstance(collective, Collective):
            if (chunks, groups, root) != (None, None, None):
                raise CollectiveError(
                    "a Collective has its own chunks, groups and root; do not give them again"
                )
            return cls(topology, collective, **stated)
        count = 1 if chunks is None else checks.integer(chunks, "chunks", CollectiveError, least=1)
        what = Collective(collective, topology.num_ranks, count, groups, root)  # type: ignore[arg-type]
        return cls(topology, what, any_chunks=chunks is None, **stated)

    def of(self, collective: Collective) -> Problem:
        """The same problem of another collective of the same ranks."""
        return dataclasses.replace(self, collective=collective)

    def with_chunks(self, count: int) -> Problem:
        """The same problem with a number of chunks per shard, which is no longer open."""
        collective = dataclasses.replace(self.collective, chunks_per_shard=count)
        return dataclasses.replace(self, collective=collective, any_chunks=False)

    # ------------------------------------------------------------------ sizes

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether every group is one rank."""
        return all(len(group) == 1 for group in self.collective.groups)

    @property
    def sends(self) -> int:
        """Chunks received in all: by every rank each once; an all_reduce sums them first."""
        rooted, groups = self.collective.kind in ROOTED, self.collective.groups
        shards = sum((1 if rooted else len(group)) * (len(group) - 1) for group in groups)
        twice = 2 if self.collective.kind == "all_reduce" else 1
        return twice * shards * self.collective.chunks_per_shard

    @property
    def hops(self) -> float:
        """Links crossed in all where chunks go between any ranks, each on a shortest path."""
        return mean_hops(self.topology) * self.sends


@functools.lru_cache(maxsize=16)
def mean_hops(topology: Topology) -> float:
    """Links of a shortest path between two ranks, on average."""
    return float(hop_distances(topology).mean())
