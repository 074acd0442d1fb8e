"""The one call from a network and a collective to a proved schedule."""

from __future__ import annotations

from collections.abc import Sequence

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.schedule import Schedule
from jaxcoll.synth.base import Synthesizer
from jaxcoll.synth.blink import Blink
from jaxcoll.synth.blueconnect import BlueConnect
from jaxcoll.synth.bruck import Bruck
from jaxcoll.synth.bucket import Bucket
from jaxcoll.synth.c_cube import CCube
from jaxcoll.synth.cascade import Cascade
from jaxcoll.synth.direct import Direct
from jaxcoll.synth.double_binary_tree import DoubleBinaryTree
from jaxcoll.synth.exact import Sccl, StepMilp
from jaxcoll.synth.forestcoll import ForestColl
from jaxcoll.synth.hdrm import Hdrm
from jaxcoll.synth.hierarchical_ring import HierarchicalRing
from jaxcoll.synth.hierarchical_tree import HierarchicalTree
from jaxcoll.synth.multitree import MultiTree
from jaxcoll.synth.portfolio import Portfolio
from jaxcoll.synth.rhd import Rhd
from jaxcoll.synth.ring import Ring
from jaxcoll.synth.ring_2d import Ring2D
from jaxcoll.synth.swing import Swing
from jaxcoll.synth.tacos import Tacos
from jaxcoll.synth.themis import Themis
from jaxcoll.synth.tto import Tto
from jaxcoll.topology import Topology
from jaxcoll.verify import verify

SYNTHESIZERS: dict[str, type[Synthesizer]] = {
    "ring": Ring,
    "direct": Direct,
    "bucket": Bucket,
    "rhd": Rhd,
    "bruck": Bruck,
    "double_binary_tree": DoubleBinaryTree,
    "hierarchical_ring": HierarchicalRing,
    "hierarchical_tree": HierarchicalTree,
    "ring_2d": Ring2D,
    "swing": Swing,
    "blueconnect": BlueConnect,
    "themis": Themis,
    "cascade": Cascade,
    "c_cube": CCube,
    "tto": Tto,
    "hdrm": Hdrm,
    "multitree": MultiTree,
    "tacos": Tacos,
    "forestcoll": ForestColl,
    "blink": Blink,
    "step_milp": StepMilp,
    "sccl": Sccl,
    "auto": Portfolio,
}


def synthesizer_named(synthesizer: str | Synthesizer) -> Synthesizer:
    """The synthesizer, given itself or its name in ``SYNTHESIZERS`` (with default fields).

    Raises:
        CollectiveError: no synthesizer has the name.
    """
    if isinstance(synthesizer, Synthesizer):
        return synthesizer
    if synthesizer not in SYNTHESIZERS:
        raise CollectiveError(
            f"unknown synthesizer {synthesizer!r}; known: {', '.join(SYNTHESIZERS)}"
        )
    return SYNTHESIZERS[synthesizer]()


def synthesize(
    topology: Topology,
    collective: str | Collective,
    synthesizer: str | Synthesizer = "tacos",
    *,
    chunks: int = 1,
    groups: Sequence[Sequence[int]] | None = None,
    root: int | None = None,
    seed: int = 0,
) -> Schedule:
    """A verified schedule of a collective on a network.

    Args:
        collective: a kind, to be run with ``chunks``, ``groups`` and ``root``; or a ``Collective``,
            which has its own.
        synthesizer: a synthesizer or its name.
        chunks: chunks a shard.
        groups: disjoint groups of ranks that run at the same time; all ranks when omitted.
        root: the root's place in every group, for collectives that have one.
        seed: the same seed gives the same schedule.

    Raises:
        CollectiveError: the collective is ill-formed, or the synthesizer not defined for it.
        TopologyError: the synthesizer is not defined for the network.
    """
    if isinstance(collective, str):
        collective = Collective(collective, topology.num_ranks, chunks, groups, root)  # type: ignore[arg-type]
    elif (chunks, groups, root) != (1, None, None):
        raise CollectiveError(
            "a Collective has its own chunks, groups and root; do not give them again"
        )
    schedule = synthesizer_named(synthesizer).synthesize(topology, collective, seed)
    verify(schedule)
    return schedule
