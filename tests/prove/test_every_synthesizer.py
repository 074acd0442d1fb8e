"""Every synthesizer's schedules up to 16 ranks: written for each runtime, proved, and read back."""

from __future__ import annotations

import pytest

import jaxcoll as jc
from jaxcoll.io import msccl
from jaxcoll.prove import prove_text

NETWORKS = {
    "ring": jc.topologies.ring(4),
    "torus": jc.topologies.torus(2, 4),
    "cube": jc.topologies.hypercube(4),
    "switch": jc.topologies.switch(8),
    "hosts": jc.topologies.dgx_h100(2),
    "dgx1": jc.topologies.dgx1(),
}
KINDS = ("all_gather", "reduce_scatter", "all_reduce")
FEW = ("ring", "tacos", "forestcoll", "rhd", "bfb")
# Those that solve integer programs take minutes on 16 ranks.
SLOW = ("sccl", "step_milp", "time_stepped", "auto")


def written_and_read(name: str, network: str, kind: str) -> bool:
    """Whether a synthesizer is defined for a network, its programs proved and read back."""
    topology = NETWORKS[network]
    try:
        schedule = jc.io.synthesize_for(topology, kind, name, for_runtime="msccl")
    except (jc.CollectiveError, jc.TopologyError):
        return False
    for dialect in ("msccl", "azure"):
        text = msccl.dumps(schedule, dialect=dialect)
        assert prove_text(text, kind, topology.num_ranks, runtime=dialect).ranks
    again = msccl.lift(msccl.loads(text), topology)
    assert jc.simulate(again, 2**24).time == jc.simulate(schedule, 2**24).time
    return True


@pytest.mark.parametrize("name", FEW)
def test_some_synthesizers_on_two_networks(name: str):
    found = {written_and_read(name, network, "all_reduce") for network in ("ring", "switch")}
    assert True in found


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", sorted(set(jc.SYNTHESIZERS) - set(SLOW)))
def test_every_synthesizer_on_every_network(name: str, network: str):
    for kind in KINDS:
        written_and_read(name, network, kind)
