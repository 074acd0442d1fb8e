"""The configuration space: Table 2 of AutoCCL, bounds, pruning, splitting, and bad input."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.errors import TuneError
from jaxcoll.tune import Config, Parameter, Space, Subspace

CODE = Parameter("code", ("a", "b", "c"), "implementation")
CHUNKS = Parameter("chunks", (1, 2, 4, 8), "resource")
LANES = Parameter("lanes", (1, 3), "resource")
DEFAULT = Config({"code": "a", "chunks": 1, "lanes": 1})
SMALL = Space.product((CODE, CHUNKS, LANES), DEFAULT)


def test_the_space_of_nccl_is_table_2_whole():
    space = Space.nccl()
    assert len(space.subspaces) == 2 * 3 * 2
    assert {subspace.shape for subspace in space.subspaces} == {(128, 20, 8192)}
    assert space.size == 251_658_240
    assert [p.name for p in space.subspaces[0].resources] == ["channels", "threads", "chunk_bytes"]
    assert space.default in space
    assert space.default["chunk_bytes"] == 2 * 2**20
    # The walk-through of section 5.3 has NT = 16, which Table 2 does not.
    assert space.default.replace(threads=16) not in space
    assert space.default.replace(threads=640) in space


def test_configurations_are_the_product():
    expected = {
        Config({"code": code, "chunks": chunks, "lanes": lanes})
        for code, chunks, lanes in itertools.product("abc", (1, 2, 4, 8), (1, 3))
    }
    found = list(SMALL.configs())
    assert len(found) == len(expected) == SMALL.size
    assert set(found) == expected
    for config in found:
        subspace = SMALL.subspace_of(config)
        assert subspace.config(subspace.index(config) or ()) == config


@given(st.permutations(["code", "chunks", "lanes"]))
def test_equality_and_hash_of_a_config_disregard_its_order(names):
    config = Config({name: DEFAULT[name] for name in names})
    assert config == DEFAULT
    assert hash(config) == hash(DEFAULT)
    assert list(config) == list(names)
    assert Config.from_json(config.to_json()) == DEFAULT
    assert config in SMALL


def test_bounds_keep_what_lies_between():
    bounded = SMALL.bounded(
        chunks=(2, 4), code=("b", "c"), default=DEFAULT.replace(code="b", chunks=2)
    )
    assert {config["chunks"] for config in bounded.configs()} == {2, 4}
    assert {config["code"] for config in bounded.configs()} == {"b", "c"}
    assert bounded.size == 2 * 2 * 2
    assert SMALL.bounded(chunks=(None, 2)).size == 3 * 2 * 2


def test_pruning_asks_before_anything_is_tried():
    pruned = SMALL.pruned(lambda c: c["chunks"] != 4).pruned(lambda c: c["lanes"] == 1)
    assert {(c["chunks"], c["lanes"]) for c in pruned.configs()} == {(1, 1), (2, 1), (8, 1)}
    assert DEFAULT.replace(chunks=4) not in pruned
    assert pruned.bounded(chunks=(1, 4)).pruned(lambda _: True).size == 3 * 3 * 2
    assert DEFAULT.replace(chunks=4) not in pruned.bounded(chunks=(1, 4))


def test_an_option_splits_subspaces_and_leaves_their_grids():
    level = Parameter("level", (0, 1), "implementation")
    split = SMALL.split(level, 0, where=lambda implementation: implementation["code"] == "a")
    assert len(split.subspaces) == 4
    assert split.default == DEFAULT.replace(level=0)
    assert {s.shape for s in split.subspaces} == {(4, 2)}
    others = [s for s in split.subspaces if s.implementation["code"] != "a"]
    assert others == [s for s in SMALL.subspaces if s.implementation["code"] != "a"]
    with pytest.raises(TuneError, match="has a parameter 'level' already"):
        split.split(level, 0)
    with pytest.raises(TuneError, match="must be an implementation"):
        SMALL.split(LANES, 1)


def test_subspaces_may_have_different_resources():
    space = Space(
        (Subspace(Config({"code": "native"})), Subspace(Config({"code": "b"}), (CHUNKS,))),
        Config({"code": "native"}),
    )
    assert space.size == 5
    assert len(list(space.configs())) == 5
    assert Config({"code": "native", "chunks": 2}) not in space
    assert Config({"code": "b"}) not in space


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Space((), DEFAULT), "space is empty"),
        (lambda: SMALL.bounded(chunks=(4, 2)), "'chunks' contradict each other: 4 is more than 2"),
        (lambda: SMALL.bounded(chunks=(5, 7)), "no value of 'chunks' lies within"),
        (lambda: SMALL.bounded(chunks=(1, 2)).bounded(chunks=(4, 8)), "no value of 'chunks'"),
        (lambda: SMALL.bounded(code=("d",)), "leave an empty"),
        (lambda: SMALL.bounded(speed=(1, 2)), "no parameter 'speed'"),
        (lambda: SMALL.bounded(chunks=3), "must be a sequence"),
        (lambda: SMALL.bounded(chunks=(1, 2, 3)), r"must be \(least, most\)"),
        (lambda: SMALL.bounded(chunks=(2, 8)), "default .* is outside"),
        (lambda: SMALL.pruned(lambda _: False), "default .* is not a valid"),
        (lambda: Space(SMALL.subspaces * 2, DEFAULT), "two subspaces"),
        (lambda: Parameter("x", (), "resource"), "no values"),
        (lambda: Parameter("x", (2, 1), "resource"), "ascending"),
        (lambda: Parameter("x", ("a", "b"), "resource"), "ascending"),
        (lambda: Parameter("x", (1, 1), "implementation"), "must differ"),
        (lambda: Parameter("x", (float("nan"),), "resource"), "finite numbers"),
        (lambda: Parameter("x", (1,), "other"), "must be one of"),  # pyright: ignore[reportArgumentType]
        (lambda: Parameter("", (1,), "resource"), "must not be empty"),
        (lambda: Config({"x": None}), "strings, finite numbers"),  # pyright: ignore[reportArgumentType]
        (lambda: Config.from_json([1]), "must be an object"),
        (lambda: Subspace(Config({}), (CODE,)), "is not a resource"),
        (lambda: Subspace(Config({"chunks": 1}), (CHUNKS,)), "must differ in name"),
        (lambda: SMALL.subspace_of(Config({"x": 1})), "outside the configuration space"),
    ],
)
def test_bad_input_is_refused_by_name(make, message):
    with pytest.raises(TuneError, match=message):
        make()


def test_the_search_part_loads_no_jax():
    code = (
        "import sys, jaxcoll as jc; assert 'jaxcoll.tune' not in sys.modules; "
        "import jaxcoll.configurations.fitted, jaxcoll.configurations.space; "
        "sys.exit('jax' in sys.modules or 'sklearn' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
