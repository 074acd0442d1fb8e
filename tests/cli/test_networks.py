"""Networks by name are those of ``jc.topologies``; bad names and numbers say what to type."""

from __future__ import annotations

import inspect
import json

import click
import pytest

import jaxcoll as jc
from jaxcoll.cli.networks import FAMILIES, SLICES, named_network
from tests.cli.calls import called

t, gen = jc.topologies, jc.topologies.generative

EXAMPLES = {
    "ring:8": lambda: t.ring(8),
    "mesh:2x3": lambda: t.mesh(2, 3),
    "torus:4x4": lambda: t.torus(4, 4),
    "hypercube:4": lambda: t.hypercube(4),
    "star:5": lambda: t.star(5),
    "fully-connected:5": lambda: t.fully_connected(5),
    "switch:8": lambda: t.switch(8),
    "switch-2d:4x2": lambda: t.switch_2d(4, 2),
    "multi-rail:2x4": lambda: t.multi_rail(2, 4),
    "ring-fc-switch:2x2x2": lambda: t.ring_fc_switch(2, 2, 2),
    "dgx1": t.dgx1,
    "dgx2": t.dgx2,
    "dgx-a100:2": lambda: t.dgx_a100(2),
    "dgx-h100:4": lambda: t.dgx_h100(4),
    "mi250:2": lambda: t.mi250(2),
    "dragonfly:4x3": lambda: t.dragonfly(4, 3),
    "fat-tree:2x3": lambda: t.fat_tree(2, 3),
    "leaf-spine:2x4x2": lambda: t.leaf_spine(2, 4, 2),
    "bigraph:8x4": lambda: t.bigraph(8, 4),
    "flattened-butterfly:3x3": lambda: t.flattened_butterfly(3, 3),
    "twisted-torus:2x4": lambda: gen.twisted_torus(2, 4).topology(),
    "twisted-hypercube:3": lambda: gen.twisted_hypercube(3).topology(),
    "circulant:12x1x5": lambda: gen.circulant(12, (1, 5)).topology(),
    "shifted-ring:12": lambda: gen.shifted_ring(12).topology(),
    "hamming:2x3": lambda: gen.hamming(2, 3).topology(),
    "kautz:2x2": lambda: gen.kautz(2, 2).topology(),
    "generalized-kautz:2x9": lambda: gen.generalized_kautz(2, 9).topology(),
    "de-bruijn:2x3": lambda: gen.de_bruijn(2, 3).topology(),
    "complete-bipartite:4": lambda: gen.complete_bipartite(4).topology(),
    "double-binary-tree:8": lambda: gen.double_binary_tree(8).topology(),
    "distance-regular:4x9": lambda: gen.distance_regular(4, 9).topology(),
    "diamond": lambda: gen.diamond().topology(),
    "product:ring:4,switch:2": lambda: t.product(t.ring(4), t.switch(2)),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_name_is_what_the_library_makes(name):
    assert named_network(name) == EXAMPLES[name]()


def test_every_family_has_an_example_and_every_public_family_a_name():
    tried = {name.partition(":")[0] for name in EXAMPLES}
    # Hosts of any bandwidth are tried below.
    assert tried == {*FAMILIES, "product"} - {"nvswitch-hosts"}
    functions = {family.function for family in FAMILIES.values()}
    public = {name for name in t.__all__ if inspect.isfunction(getattr(t, name))}
    # A product is named by its factors; what stands behind routers takes a network.
    assert public - functions == {"product", "behind_routers"}


def test_links_are_stated():
    assert named_network("torus:4x4", [1e-6], [25e9]) == t.torus(4, 4, alpha=1e-6, bandwidth=25e9)
    two = named_network("torus:4x4", [1e-6, 2e-6], [25e9, 50e9])
    assert two == t.torus(4, 4, alpha=(1e-6, 2e-6), bandwidth=(25e9, 50e9))
    hosts = named_network("dgx-h100:2", [1e-6, 3e-6], [400e9, 25e9])
    assert hosts == t.dgx_h100(2, alpha=1e-6, network_alpha=3e-6, inside=400e9, network=25e9)
    sizes = named_network("nvswitch-hosts:4x2", [], [450e9, 50e9])
    assert sizes == t.nvswitch_hosts((4, 2), inside=450e9, network=50e9)
    assert named_network("kautz:2x2", [1e-6], [10e9]) == gen.kautz(2, 2).topology(1e-6, 10e9)


def test_slices_are_wired_as_their_chips_are():
    cube = named_network("v5p:4x4x8")
    assert (cube.num_ranks, cube.num_links) == (128, 6 * 128)  # all dimensions are rings
    flat = named_network("v5e:4x8")
    assert (flat.num_ranks, flat.num_links) == (32, 2 * (3 * 8 + 4 * 7))  # none is
    assert set(flat.bandwidth.tolist()) == {50e9}
    assert named_network("v5e:16x2").num_links == 2 * (16 * 2 + 16)
    assert {name for name in SLICES if named_network(f"{name}:4x4").num_ranks != 16} == set()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("toru:4x4", "did you mean 'torus'"),
        ("h100-hots", "did you mean 'h100-host'"),
        ("torus", "type torus:AxB.."),
        ("torus:", "type torus:AxB.."),
        ("torus:4y4", "type torus:AxB.."),
        ("torus:-4x4", "type torus:AxB.."),
        ("ring:8x8", "type ring:RANKS"),
        ("torus:99999x99999", "up to 65536"),
        ("hypercube:999999", "up to 65536"),
        ("kautz:9x999999", "up to 65536"),
        ("fully-connected:99999", "up to 2048"),
        ("dgx-h100:", "type dgx-h100:HOSTS"),
        ("nvswitch-hosts:8x8", "type --bandwidth 450GB/s,50GB/s"),
        ("v5e:4x4x4", "type v5e:4x8"),
        ("v5p:0x4x4", "type v5p:4x4x8"),
        ("v5p:99999x99999x9", "at most 65536"),
        ("product:ring:4", "type product:ring:4,ring:8"),
        ("", "jaxcoll show --names"),
        ("x" * 10_000, "jaxcoll show --names"),
    ],
)
def test_refused_names(name, said):
    with pytest.raises(click.UsageError) as error:
        named_network(name)
    assert said in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("name", ["torus:0x4", "hypercube:99", "fat-tree:0x0", "bigraph:8x3"])
def test_numbers_that_a_family_does_not_take_are_refused_by_it(name):
    with pytest.raises((jc.errors.TopologyError, click.UsageError), match=r".{10}"):
        named_network(name)


def test_several_values_for_links_of_one_kind():
    with pytest.raises(click.UsageError, match="give one value"):
        named_network("ring:8", [1e-6, 2e-6], [])
    with pytest.raises(click.UsageError, match="at most two values"):
        named_network("dgx-h100:2", [], [1e9, 2e9, 3e9])


def test_a_table_of_nvidia_smi_is_a_network(tmp_path, capsys):
    table = tmp_path / "topo.txt"
    table.write_text("\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV18\tPIX\nGPU1\tNV18\t X \tSYS\n")
    options = "--from", table, "all_gather", "--gpu", "H100", "--size", "1GB", "--json"
    found = json.loads(called(capsys, "bound", *options)[1])
    assert (found["collective"], found["ranks"]) == ("all_gather", 2)
    code, _, said = called(capsys, "bound", "--from", table, "--hosts", 2)
    assert code == 0
    assert [line.partition(": ")[0] for line in said.splitlines()] == ["jaxcoll"] * 2
    assert "assumed to be h100" in said
    network = tmp_path / "network.json"
    assert called(capsys, "convert", table, network, "--gpu", "h100", "--hosts", 2)[0] == 0
    assert named_network(str(network)).num_ranks == 4
    assert called(capsys, "show", table)[0] == 0
