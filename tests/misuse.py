"""Every public function and constructor with arguments that are right, and values that are not.

``CASES`` has for each callable its arguments by name; ``HOSTILE`` what each is replaced by in turn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np

import jaxcoll as jc
from jaxcoll import draw, executors, pages, paths, simulation, synth, topologies
from jaxcoll.bounds import moore, throughput
from jaxcoll.io import (
    amd_smi,
    astra_sim,
    forestcoll,
    gke_gpus,
    gke_labels,
    graph_files,
    ibnetdiscover,
    infragraph,
    json,
    lstopo,
    multitree,
    nccl_tests,
    nccl_topology,
    ns3,
    nvidia_smi,
    sccl,
    slurm,
    teccl,
    timings,
    tpu_slices,
    traces,
)
from jaxcoll.links import capable_switches
from jaxcoll.simulation import LinkModel, messages, steady_seconds
from jaxcoll.synth import direct_connect
from tests.io.networks import hosts, printed

HOSTILE: tuple[Any, ...] = (
    None, "", "x", "abcd", b"x", True, math.nan, math.inf, -math.inf, -1, 0, 0.5, 1e30, 10**12,
    2**31, 2**64, 10**400, Fraction(1, 3), 1j, (), [], (5,), ("a",), ["ring"], [[1]], ((0, 0),),
    [None], {}, {"a": 1}, {1, 2}, object(), np.int64(2), np.float64("nan"), np.zeros(0),
    np.zeros((2, 2)), np.asarray("x"), np.asarray([1.5, 2.5]), len, iter(()), range(10**12),
    [10**30], ["x", 1],
)  # fmt: skip

RING = topologies.ring(4)
SWITCH = topologies.switch(4)
RAILS = topologies.multi_rail(3, 3)
GATHER = jc.Collective("all_gather", 4)
SCHEDULE = jc.synthesize(RING, "all_gather", "ring", chunks=2)
SCATTER = jc.synthesize(RING, "reduce_scatter", "ring", chunks=2)
TABLES = jc.synthesize(RING, "all_reduce", "multitree")
FLOW = synth.forest(RING)
OPTIMUM = jc.bounds.optimum(RING)
GROUP = direct_connect.GroupNetwork.torus(3, 3)
TIMELINE = jc.simulate(SCHEDULE, 1000)
TABLE = nccl_tests.of_timelines([TIMELINE])
TIMES = timings.Timings(
    tuple(
        timings.Timing("all_gather", 4, size, 1e-5 + size / 1e10, "ring", 1)
        for size in (10**5, 10**6, 10**7, 10**8)
    )
)
FRAMING = simulation.Framing()
ORBIT = jc.synthesize_orbit(RING, "all_gather", chunks=1)
SYSTEM = nccl_topology.loads(hosts.clique({(0, 1): 2}, 2))
SMI = nvidia_smi.Connections(2, (("X", "NV18"), ("NV18", "X")), {"NIC0": ("PIX", "SYS")})
LINKS = {"alpha": 1e-6, "bandwidth": 1e9}
MACHINE = {"gpu": "v100", "hosts": 1, "network": 50e9, "speeds": "nccl"}
FABRIC = {"gpu": "h100:8", "nodes": "n[1-2]", "inside": 450e9, "alpha": 1e-6}
CLUSTER = {"gpu": "h100:8", "nodes": "gpu[01-02]", "inside": 450e9, "network": 50e9, "alpha": 1e-6}
MODEL = """{"devices": [{"name": "d", "components": [{"name": "x", "count": 2, "choice": "xpu"}],
  "links": [{"name": "l"}], "edges": [{"ep1": {"component": "x"}, "ep2": {"component": "x"},
  "scheme": "ring", "link": "l"}]}], "instances": [{"name": "i", "device": "d", "count": 1}]}"""
TACCL = """{"gpus_per_node": 2, "nics_per_node": 1, "alpha": 0.5, "links": [[0, 1], [1, 0]],
  "betas": [[0, 20], [20, 0]], "remote_alpha": 2.5, "remote_beta": 100}"""
TREE = simulation.NetworkTree.shortest(RING, 0)
PLACEMENT = jc.grid.Placement(jc.grid.Grid((4,), (True,)), (0, 1, 2, 3))
COLUMNS: dict[str, Any] = {
    "src": [0, 1], "dst": [1, 0], "alpha": [0.0, 0.0], "bandwidth": [1.0, 1.0]
}  # fmt: skip


def fields_of(record) -> dict[str, Any]:
    fields = dataclasses.fields(record)
    return {field.name: getattr(record, field.name) for field in fields if field.init}


def tuple_of(function):
    """A function of positional arguments, as one of a keyword ``args``."""

    def call(args, **keywords):
        return function(*(args if isinstance(args, (tuple, list)) else (args,)), **keywords)

    return call


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    # ------------------------------------------------------------------ the data
    "Topology": (
        jc.Topology,
        {
            "num_ranks": 2, **COLUMNS, "num_vertices": 2, "name": "two", "vertex_names": ("a", "b"),
            "grid": jc.grid.Grid((2,), (False,)), "placement": None, "generators": ((1, 0),),
            "in_network": capable_switches.InNetwork(),
        },
    ),
    "InNetwork": (capable_switches.InNetwork, {"copying": (2,), "adding": (2,)}),
    "Topology.with_in_network": (
        jc.topologies.switch(2).with_in_network, {"copying": (2,), "adding": True}
    ),
    "Topology.has_links_of": (RING.has_links_of, {"other": RING}),
    "Topology.relabel": (RING.relabel, {"permutation": (1, 2, 3, 0)}),
    "Topology.relabel_links": (RING.relabel_links, {"permutation": (1, 2, 3, 0)}),
    "Topology.scaled": (RING.scaled, {"factors": {(0, 1): 0.5}}),
    "Topology.scaled by name": (RAILS.scaled, {"factors": {"rail 1": 0.5}}),
    "Topology.without": (RING.without, {"links": [(0, 1)], "ranks": [], "switches": []}),
    "Topology.without by name": (
        RAILS.without,
        {"links": [("host 0 rank 0", "rail 0")], "ranks": ["host 1"], "switches": ["rail 1"]},
    ),
    "Topology.from_networkx": (
        jc.Topology.from_networkx, {"graph": RING.to_networkx(), **LINKS}
    ),
    "Grid": (jc.grid.Grid, {"shape": (2, 2), "wrap": (True, False)}),
    "Placement": (jc.grid.Placement, fields_of(PLACEMENT)),
    "Collective": (
        jc.Collective,
        {"kind": "broadcast", "num_ranks": 4, "chunks_per_shard": 2, "groups": None, "root": 1,
         "helpers": True},
    ),
    "Collective.relabel": (GATHER.relabel, {"permutation": (1, 2, 3, 0)}),
    "Collective.with_kind": (GATHER.with_kind, {"kind": "reduce_scatter"}),
    "Collective.chunk_bytes": (GATHER.chunk_bytes, {"nbytes": 100}),
    "Edges": (jc.paths.Edges, fields_of(SCHEDULE.edges)),
    "Edges.from_links": (jc.paths.Edges.from_links, {"topology": RING}),
    "Schedule": (jc.Schedule, fields_of(SCHEDULE)),
    "Schedule.from_sends": (
        jc.Schedule.from_sends,
        {
            "topology": RING, "collective": GATHER, "step": [0], "edge": [0], "chunk": [0],
            "reduce": False, "edges": None, "provenance": jc.schedule.Provenance(),
        },
    ),
    "Schedule.relabel": (SCHEDULE.relabel, {"permutation": (1, 2, 3, 0)}),
    "Schedule.with_provenance": (
        SCHEDULE.with_provenance, {"provenance": jc.schedule.Provenance()}
    ),
    "concatenate": (jc.schedule.concatenate, {"first": SCATTER, "second": SCHEDULE}),
    "TreeFlow": (jc.trees.TreeFlow, fields_of(FLOW)),
    "TreeFlow.to_schedule": (
        FLOW.to_schedule, {"pieces": 1, "order": "steps", "collective": None}
    ),
    "multicast": (messages.multicast, {"flow": FLOW, "switches": ()}),
    "shortest_routes": (jc.paths.shortest_routes, {"topology": RING, "src": [0], "dst": [2]}),
    "hop_distances": (paths.hop_distances, {"topology": RING}),
    "latency_distances": (paths.latency_distances, {"topology": RING}),
    # ------------------------------------------------------------------ proof, time, bounds
    "verify": (jc.verify, {"schedule": SCHEDULE}),
    "simulate": (
        jc.simulate, {"schedule": SCHEDULE, "nbytes": 1e6, "model": "astra", "framing": FRAMING}
    ),
    "simulate_multicast": (
        simulation.simulate_multicast,
        {
            "flow": FLOW, "nbytes": 1000, "switches": (), "kind": "all_gather", "pieces": 1,
            "in_flight": 2, "model": "astra",
        },
    ),
    "NetworkTree": (simulation.NetworkTree, {"root": 2, "routes": ((2, 0), (2, 1)), "weight": 1}),
    "NetworkTree.shortest": (
        simulation.NetworkTree.shortest, {"topology": RING, "root": 0, "weight": 1}
    ),
    "simulate_in_network": (
        simulation.simulate_in_network,
        {
            "topology": RING, "kind": "all_reduce", "trees": [TREE], "nbytes": 1000,
            "sums": [TREE], "pieces": 1, "in_flight": 2, "model": "astra",
        },
    ),
    "sum_orders": (simulation.sum_orders, {"schedule": SCATTER}),
    "NativeCost": (
        simulation.NativeCost, {"kind": "all_reduce", "seconds": 1e-6, "per_byte": 1e-9}
    ),
    "ExecutionCosts": (
        simulation.ExecutionCosts,
        {
            "backend": "cpu", "permute": 1e-6, "step": 1e-6, "copied": 1e-9, "added": 1e-9,
            "swapped": 0.0, "native": (), "shared": False, "source": "", "machine": "",
        },
    ),
    "Timeline.utilization": (TIMELINE.utilization, {"bins": 4}),
    "steady_seconds": (steady_seconds, {"schedule": SCHEDULE}),
    "link_model": (simulation.link_model, {"given": "tacos"}),
    "Framing": (simulation.Framing, {"payload": 64, "head": 8}),
    "LinkModel": (
        LinkModel,
        {
            "name": "mine", "law": lambda k, n, s, a, r, t: (s, s + a), "ties_as_pushed": True,
            "network": lambda topology: topology,
        },
    ),
    "Message": (simulation.Message, {"route": (0, 1), "nbytes": 5, "release": 0, "after": ()}),
    "simulate_messages": (
        simulation.simulate_messages,
        {
            "topology": RING, "messages": [simulation.Message((0, 1), 5)], "model": "tacos",
            "framing": FRAMING,
        },
    ),
    "simulate_together": (
        simulation.simulate_together,
        {"schedules": [SCHEDULE], "nbytes": 1e6, "model": "tacos"},
    ),
    "bound": (
        jc.bound,
        {"topology": RING, "collective": "all_reduce", "nbytes": 1e6, "progress": None},
    ),
    "calibrate": (
        jc.calibrate,
        {"log": TIMES, "topology": RING, "collective": "all_gather", "least": 0, "progress": None},
    ),
    "compare": (
        lambda **given: list(jc.compare(**given)),
        {
            "topology": RING, "collective": "all_reduce", "sizes": [1e6], "synthesizers": ["ring"],
            "seed": 0, "execution": None, "model": "tacos", "path": None, "executor": None,
            "progress": None,
        },
    ),
    "executors.ordered": (
        lambda **given: list(executors.ordered(jobs=(), **given)),
        {"function": abs, "executor": None},
    ),
    "executors.processes": (lambda **given: contextlib.ExitStack().enter_context(
        executors.processes(**given)), {"workers": 1}),
    "executors.with_workers": (lambda **given: contextlib.ExitStack().enter_context(
        executors.with_workers(**given)), {"workers": 1}),
    "lower_bounds": (
        jc.bounds.lower_bounds, {"topology": RING, "collective": "all_to_all", "nbytes": 1e6}
    ),
    "cut_bound": (jc.bounds.cut_bound, {"topology": RING, "collective": GATHER, "nbytes": 1e6}),
    "ideal": (jc.bounds.ideal, {"topology": RING, "collective": "all_reduce", "nbytes": 1e6}),
    "step_bound": (jc.bounds.step_bound, {"topology": RING, "collective": "all_gather"}),
    "optimum": (jc.bounds.optimum, {"topology": RING, "weights": (1, 1, 1, 1)}),
    "Optimum.check": (OPTIMUM.check, {"topology": RING}),
    "fixed_k": (throughput.fixed_k, {"topology": RING, "k": 1, "weights": None, "best": None}),
    "balanced": (throughput.balanced, {"topology": RING}),
    # ------------------------------------------------------------------ schedules
    "synthesize": (
        jc.synthesize,
        {
            "topology": RING, "collective": "broadcast", "synthesizer": "tacos", "chunks": 1,
            "groups": None, "root": 0, "helpers": True, "seed": 0, "model": "tacos",
            "progress": None,
        },
    ),
    "synthesizer_named": (synth.synthesizer_named, {"synthesizer": "ring"}),
    "Synthesizer.synthesize": (
        synth.Ring().synthesize, {"topology": RING, "collective": GATHER, "seed": 0}
    ),
    "empty_schedule": (synth.empty_schedule, {"topology": RING, "collective": GATHER}),
    "forest": (synth.forest, {"topology": RING}),
    "synthesize_orbit": (
        jc.synthesize_orbit,
        {"topology": RING, "kind": "all_gather", "nbytes": 2**20, "chunks": 1},
    ),
    "Translations": (
        jc.orbits.Translations, {"topology": RING, "generators": [[1, 2, 3, 0]]}
    ),
    "OrbitSchedule": (
        jc.orbits.OrbitSchedule,
        {"orbit": ORBIT.orbit, "translations": ORBIT.translations},
    ),
    "shard_of_one": (
        jc.orbits.shard_of_one, {"kind": "all_gather", "num_ranks": 4, "chunks": 1}
    ),
    "OrbitSchedule.sends_of": (ORBIT.sends_of, {"rank": 0}),
    "synthesize_compact": (
        jc.synthesize_compact,
        {
            "topology": SWITCH, "folder": "never made", "chunks": 1, "rule": "random", "seed": 0,
            "threads": 1, "progress": None,
        },
    ),
    # ------------------------------------------------------------------ files
    "io.dumps": (json.dumps, {"obj": RING}),
    "io.loads": (json.loads, {"text": json.dumps(GATHER)}),
    "io.nvidia_smi.loads": (nvidia_smi.loads, {"text": nvidia_smi.dumps(SMI)}),
    "io.nvidia_smi.dumps": (nvidia_smi.dumps, {"table": SMI}),
    "io.nvidia_smi.load": (nvidia_smi.load, {"path": "/nowhere", "max_bytes": 1000}),
    "io.nvidia_smi.save": (nvidia_smi.save, {"path": "table.txt", "table": SMI}),
    "io.amd_smi.loads": (
        amd_smi.loads,
        {"text": printed.rocm_smi(2), "gpu": "mi300x", "hosts": 2, "inside": 64e9,
         "network": 50e9, "speeds": "nccl"},
    ),
    "io.amd_smi.load": (
        amd_smi.load,
        {"path": "/nowhere", "gpu": "mi300x", "hosts": 2, "inside": 64e9, "network": 50e9,
         "speeds": "nccl", "max_bytes": 1000},
    ),
    "io.ibnetdiscover.loads": (
        ibnetdiscover.loads, {"text": printed.leaf_spine(2, 2, 1), **FABRIC}
    ),
    "io.ibnetdiscover.load": (
        ibnetdiscover.load, {"path": "/nowhere", **FABRIC, "max_bytes": 1000}
    ),
    "io.lstopo.loads": (
        lstopo.loads, {"text": printed.lstopo(hosts.clique({(0, 1): 2}, 2), "V100"), **MACHINE}
    ),
    "io.lstopo.load": (lstopo.load, {"path": "/nowhere", **MACHINE, "max_bytes": 1000}),
    "io.gke_gpus.loads": (
        gke_gpus.loads,
        {"text": printed.GPU_NODES, **CLUSTER, "nodes": "gke-gpu-[0-1]"},
    ),
    "io.gke_gpus.load": (
        gke_gpus.load, {"path": "/nowhere", **CLUSTER, "max_bytes": 1000}
    ),
    "io.gke_labels.loads": (gke_labels.loads, {"text": printed.LABELS, **LINKS}),
    "io.gke_labels.load": (gke_labels.load, {"path": "/nowhere", **LINKS, "max_bytes": 1000}),
    "io.tpu_slices.network": (
        tpu_slices.network, {"kind": "TPU v5", "shape": (2, 2, 2), **LINKS}
    ),
    "io.ns3.loads": (ns3.loads, {"text": printed.SIMAI}),
    "io.ns3.load": (ns3.load, {"path": "/nowhere", "max_bytes": 1000}),
    "io.slurm.loads": (slurm.loads, {"text": printed.TREE, **CLUSTER}),
    "io.slurm.load": (slurm.load, {"path": "/nowhere", **CLUSTER, "max_bytes": 1000}),
    "io.astra_sim.loads": (
        astra_sim.loads,
        {"text": "topology: [Ring]\nnpus_count: [4]\nbandwidth: [1]\nlatency: [0]"},
    ),
    "io.astra_sim.load": (astra_sim.load, {"path": "/nowhere", "max_bytes": 1000}),
    "io.sccl.loads": (sccl.loads, {"text": sccl.dumps(RING), **LINKS}),
    "io.sccl.dumps": (sccl.dumps, {"obj": RING, "dialect": "msccl"}),
    "io.sccl.save": (sccl.save, {"path": "s.json", "obj": SCHEDULE, "dialect": "sccl"}),
    "io.sccl.load": (sccl.load, {"path": "/nowhere", **LINKS, "max_bytes": 1000}),
    "io.sccl.topology": (sccl.topology, {"text": TACCL, "nbytes": 1e6, "hosts": 2}),
    "io.teccl.network": (
        teccl.network, {"name": "Mesh", "chassis": 1, "alpha": 1e-6, "side_length": 3}
    ),
    "io.teccl.loads": (teccl.loads, {"text": '{"TopologyParams": {"name": "DGX1"}}'}),
    "io.teccl.dumps": (teccl.dumps, {"schedule": SCHEDULE, "nbytes": 1000}),
    "io.teccl.loads_schedule": (
        teccl.loads_schedule,
        {"text": teccl.dumps(SCHEDULE, 8), "network": RING, "kind": "all_gather"},
    ),
    "io.teccl.save": (teccl.save, {"path": "t.json", "schedule": SCHEDULE, "nbytes": 1000}),
    "io.teccl.load": (teccl.load, {"path": "/nowhere", "max_bytes": 1000}),
    "io.forestcoll.dumps": (forestcoll.dumps, {"trees": FLOW}),
    "io.forestcoll.loads": (
        forestcoll.loads, {"text": forestcoll.dumps(FLOW), "network": RING}
    ),
    "io.forestcoll.save": (forestcoll.save, {"path": "t.xml", "trees": SCHEDULE}),
    "io.forestcoll.load": (
        forestcoll.load, {"path": "/nowhere", "network": RING, "max_bytes": 1000}
    ),
    "io.graph_files.loads": (graph_files.loads, {"text": graph_files.dumps(RING), **LINKS}),
    "io.graph_files.dumps": (graph_files.dumps, {"topology": RING, "form": "gexf"}),
    "io.graph_files.save": (graph_files.save, {"path": "g.gexf", "topology": RING}),
    "io.infragraph.loads": (infragraph.loads, {"text": MODEL, **LINKS}),
    "io.timings.Timing": (timings.Timing, fields_of(TIMES.rows[0])),
    "io.timings.loads": (
        timings.loads,
        {"text": timings.dumps(TIMES.rows), "collective": "all_gather", "ranks": 4},
    ),
    "io.timings.dumps": (timings.dumps, {"timings": TIMES.rows}),
    "io.timings.dumps_json": (timings.dumps_json, {"timings": TIMES.rows}),
    "io.timings.save": (timings.save, {"path": "t.csv", "timings": TIMES.rows}),
    "io.timings.load": (
        timings.load, {"path": "/nowhere", "collective": "reduce", "ranks": 2, "max_bytes": 1000}
    ),
    "io.nccl_tests.of_timelines": (nccl_tests.of_timelines, {"runs": [TIMELINE]}),
    "io.nccl_tests.dumps": (nccl_tests.dumps, {"measured": TABLE}),
    "io.nccl_tests.dumps_json": (nccl_tests.dumps_json, {"measured": TABLE}),
    "io.nccl_tests.save": (nccl_tests.save, {"path": "t.txt", "measured": TABLE}),
    "io.nccl_tests.load": (nccl_tests.load, {"path": "/nowhere", "max_bytes": 1000}),
    "io.traces.dumps": (traces.dumps, {"timeline": TIMELINE}),
    "io.traces.save": (traces.save, {"path": "t.json", "timeline": TIMELINE}),
    "io.tpu_slices.sides": (tpu_slices.sides, {"name": "v5p-128"}),
    "io.nccl_topology.loads": (nccl_topology.loads, {"text": hosts.clique({(0, 1): 2}, 2)}),
    "io.nccl_topology.dumps": (nccl_topology.dumps, {"system": SYSTEM}),
    "io.nccl_topology.load": (nccl_topology.load, {"path": "/nowhere", "max_bytes": 1000}),
    "io.nccl_topology.save": (nccl_topology.save, {"path": "topo.xml", "system": SYSTEM}),
    "io.nccl_topology.topology": (
        nccl_topology.topology,
        {"system": SYSTEM, "hosts": 1, "speeds": "nccl", "network": 50e9},
    ),
    "io.nvidia_smi.topology": (
        nvidia_smi.topology,
        {"table": SMI, "gpu": "h100", "hosts": 2, "inside": 25e9, "network": 50e9},
    ),
    "io.multitree.tables": (multitree.tables, {"schedule": TABLES, "nbytes": 1024}),
    "io.multitree.dumps": (multitree.dumps, {"schedule": TABLES, "nbytes": 1024, "slots": 4}),
    "io.multitree.loads": (multitree.loads, {"text": multitree.dumps(TABLES)}),
    # ------------------------------------------------------------------ drawings
    "draw_topology": (draw.draw_topology, {"topology": RING, "schedule": SCHEDULE, "chunk": 1}),
    "pages.schedule": (
        pages.schedule, {"schedule": SCHEDULE, "nbytes": 1000, "model": "astra", "title": "x"}
    ),
    "draw_loads": (draw.draw_loads, {"schedule": SCHEDULE}),
    "draw_heatmap": (tuple_of(draw.draw_heatmap), {"args": (SCHEDULE,), "labels": ("ring",)}),
    "link_loads": (draw.link_loads, {"schedule": SCHEDULE}),
    "draw_algbw": (
        draw.draw_algbw,
        {"nbytes": [1, 2], "algbw": {"ring": [1.0, 2.0]}, "bound": [3.0, 4.0]},
    ),
    "draw_predictions": (draw.draw_predictions, {"points": {"a": [(1.0, 2.0)]}}),
    "draw_times": (draw.draw_times, {"curves": {"a": [(1.0, 2.0)]}}),
    "format_bytes": (draw.format_bytes, {"nbytes": 1024}),
    # ------------------------------------------------------------------ networks
    "ring": (topologies.ring, {"n": 4, "bidirectional": True, **LINKS}),
    "mesh": (tuple_of(topologies.mesh), {"args": (2, 3), **LINKS}),
    "torus": (tuple_of(topologies.torus), {"args": (3, 3), **LINKS}),
    "hypercube": (topologies.hypercube, {"dimensions": 3, **LINKS}),
    "fully_connected": (topologies.fully_connected, {"n": 4, **LINKS}),
    "star": (topologies.star, {"n": 4, **LINKS}),
    "switch": (topologies.switch, {"n": 4, "degree": 2, **LINKS}),
    "bigraph": (topologies.bigraph, {"ranks": 2, "switches": 4, **LINKS}),
    "dgx1": (topologies.dgx1, {"merged": True, **LINKS}),
    "dgx2": (topologies.dgx2, {"planes": 2, **LINKS}),
    "dgx_a100": (
        topologies.dgx_a100,
        {"hosts": 2, "inside": 3e11, "network": 25e9, "alpha": 1e-6, "network_alpha": 1e-6},
    ),
    "dgx_h100": (topologies.dgx_h100, {"hosts": 2, "inside": 3e11, "network": 25e9}),
    "mi250": (
        topologies.mi250,
        {
            "hosts": 2, "ranks": 8, "inside": 50e9, "network": 16e9, "alpha": 1e-6,
            "network_alpha": 1e-6,
        },
    ),
    "nvswitch_hosts": (
        topologies.nvswitch_hosts,
        {
            "sizes": (2, 3), "inside": 1e9, "network": 1e9, "alpha": 1e-6, "network_alpha": 1e-6,
            "name": "",
        },
    ),
    "dragonfly": (topologies.dragonfly, {"groups": 3, "routers": 2, **LINKS}),
    "fat_tree": (topologies.fat_tree, {"arity": 2, "levels": 2, **LINKS}),
    "leaf_spine": (
        topologies.leaf_spine,
        {"leaves": 2, "ranks": 2, "spines": 2, "oversubscription": 2, **LINKS},
    ),
    "switch_2d": (topologies.switch_2d, {"inner": 2, "outer": 2, "degree": 1, **LINKS}),
    "multi_rail": (topologies.multi_rail, {"hosts": 2, "ranks": 2, **LINKS}),
    "ring_fc_switch": (
        topologies.ring_fc_switch,
        {
            "ring_side": 2, "fc_side": 2, "switch_side": 2, "shared": True, "degree": 1, **LINKS,
        },
    ),
    "product": (tuple_of(topologies.product), {"args": (RING, RING), "name": ""}),
    "behind_routers": (
        topologies.behind_routers, {"network": RING, "terminals": 2, **LINKS}
    ),
    "flattened_butterfly": (
        tuple_of(topologies.flattened_butterfly), {"args": (2, 2), "terminals": 2, **LINKS}
    ),
    # ------------------------------------------------------------------ direct-connect networks
    "moore_bound": (moore.moore_bound, {"degree": 4, "diameter": 2}),
    "moore_steps": (moore.moore_steps, {"n": 9, "degree": 4}),
    "bidirectional_moore_steps": (moore.bidirectional_moore_steps, {"n": 9, "degree": 4}),
    "bandwidth_optimum": (moore.bandwidth_optimum, {"n": 9}),
    "least_cost": (moore.least_cost, {"n": 9, "degree": 4, "kind": "all_reduce"}),
    "bandwidth_with_reduction": (
        moore.bandwidth_with_reduction, {"bandwidth": 1e9, "gamma": 1e-10}
    ),
    "cost": (moore.cost, {"schedule": SCHEDULE, "degree": 2}),
    "Cost.time": (
        moore.least_cost(4, 2).time, {"alpha": 1e-6, "nbytes": 1e6, "bandwidth": 1e9}
    ),
    "reduction_cost": (moore.reduction_cost, {"schedule": SCATTER}),
    "optimality": (moore.optimality, {"schedule": SCHEDULE, "degree": 2}),
    "ports_of": (moore.ports_of, {"topology": RING, "degree": 2}),
    "Bfb.chunks": (synth.Bfb.chunks, {"topology": RING}),
    "bfb_bottlenecks": (direct_connect.bfb_bottlenecks, {"network": RING}),
    "bfb_cost": (direct_connect.bfb_cost, {"network": RING}),
    "bfb_times": (direct_connect.bfb_times, {"topology": RING, "nbytes": 1e6}),
    "reversed_on": (
        direct_connect.reversed_on, {"schedule": SCATTER, "reversal": (0, 1, 2, 3)}
    ),
    "GroupNetwork": (
        direct_connect.GroupNetwork,
        {"moduli": (2, 3), "offsets": ((1, 1),), **LINKS, "name": ""},
    ),
    "GroupNetwork.torus": (
        tuple_of(direct_connect.GroupNetwork.torus), {"args": (3, 3), **LINKS}
    ),
    "GroupNetwork.circulant": (
        direct_connect.GroupNetwork.circulant, {"n": 7, "offsets": (2, 3), **LINKS}
    ),
    "GroupNetwork.twisted_torus": (
        tuple_of(direct_connect.GroupNetwork.twisted_torus), {"args": (3, 6), **LINKS}
    ),
    "GroupNetwork.lattice": (
        direct_connect.GroupNetwork.lattice, {"rows": ((2, 1), (0, 3)), **LINKS, "name": ""}
    ),
    "GroupNetwork.shifted": (GROUP.shifted, {"offset": (1, 0)}),
    "GroupSchedule": (
        direct_connect.GroupSchedule, fields_of(direct_connect.group_bfb(GROUP))
    ),
    "group_bfb": (direct_connect.group_bfb, {"network": GROUP, "chunks": 2}),
    "group_cost": (direct_connect.group_cost, {"network": GROUP}),
    # ------------------------------------------------------------------ fields of synthesizers
    **{
        f"synth.{kind.__name__}": (kind, fields_of(kind()))
        for kind in dict.fromkeys(jc.synth.SYNTHESIZERS.values())
    },
}  # fmt: skip


# Functions that the caller writes are called as they are; their errors are the caller's.
OWN_FUNCTIONS = frozenset(("function", "progress", "rows", "step", "step_of", "valid", "where"))


def calls(call, arguments: dict[str, Any]):
    """A call as it is meant, then with one argument after another replaced by each value."""
    yield "as meant", lambda: call(**arguments)
    for argument in arguments:
        for value in HOSTILE:
            if callable(value) and argument in OWN_FUNCTIONS:
                continue
            changed = {**arguments, argument: value}
            # Some values have a repr that is long or that itself fails.
            yield f"{argument}={str(value)[:40]}", lambda changed=changed: call(**changed)
