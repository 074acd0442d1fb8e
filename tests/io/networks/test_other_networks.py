"""Networks by the names of TPU slices, and of ASTRA-sim's files."""

from __future__ import annotations

import random

import pytest

import jaxcoll as jc
from jaxcoll.cli.networks import named_network
from jaxcoll.errors import FormatError, TopologyError
from jaxcoll.io import astra_sim, tpu_slices
from tests.io.mutations import mutated_text, refuses

YML = """topology: [ Ring, Switch ]  # first runs fastest
npus_count: [ 4, 2 ]
bandwidth: [ 50.0, 25 ]
latency: [ 500.0, 2000 ]
"""


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("v5p-128", (4, 4, 4)), ("tpu7x-128", (4, 4, 4)), ("tpu7x-32", (2, 2, 4)),
        ("v5litepod-16", (4, 4)), ("v6e-8", (2, 4)), ("v4-8", (2, 2, 1)), ("v6e-4x4", (4, 4)),
        ("tpu7x-4x4x8", (4, 4, 8)), ("v5p-12288", (16, 16, 24)),
    ],
)  # fmt: skip
def test_names_of_slices(name: str, sides: tuple[int, ...]):
    assert tpu_slices.sides(name)[1] == sides


def test_a_slice_is_the_network_of_its_sides():
    assert named_network("v5p-128") == named_network("v5p:4x4x4")
    assert named_network("v6e-16") == named_network("v6e:4x4")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5p-100", "no slice of v5p has 100 cores; the nearest are 32, 64, 128; other"),
        ("v6e-512", "no slice of v6e has 512 chips"),
        ("v4-12288", "no slice of v4 has 12288 cores"),
        ("v6e-4x4x4", "have 2 sides"),
        ("v6e-64x64", "at most 256 chips"),
        ("v9-8", "no slice is called 'v9-8'; generations: v4"),
        ("v5p", "no slice is called"),
    ],
)
def test_names_of_no_slice(name: str, message: str):
    with pytest.raises(TopologyError, match=message):
        tpu_slices.sides(name)


def test_the_first_dimension_of_astra_sim_runs_fastest(tmp_path):
    found = astra_sim.loads(YML)
    assert (found.num_ranks, found.num_vertices) == (8, 8 + 4)
    pairs = set(zip(found.src.tolist(), found.dst.tolist(), strict=True))
    assert {(0, 1), (3, 0), (4, 5)} <= pairs
    assert (0, 4) not in pairs
    at = next(i for i in range(len(found.src)) if (found.src[i], found.dst[i]) == (0, 1))
    assert (found.bandwidth[at], found.alpha[at]) == (50 * 2**30, pytest.approx(500e-9))
    (tmp_path / "net.yml").write_text(YML)
    assert named_network(str(tmp_path / "net.yml")) == found
    single = astra_sim.loads(
        "topology: [FullyConnected]\nnpus_count: [3]\nbandwidth: [1]\nlatency: [0]"
    )
    assert single.num_links == 6


test_other_files_are_refused_with_their_line = refuses(
    astra_sim.loads, FormatError, YML, "astra_sim"
)


def test_mutants_are_refused_or_networks():
    read = 0
    for seed in range(500):
        try:
            text = mutated_text(YML.encode(), random.Random(seed)).decode("utf-8", "replace")
            assert isinstance(astra_sim.loads(text), jc.Topology)
            read += 1
        except (FormatError, TopologyError):
            pass
    assert 0 < read < 500
