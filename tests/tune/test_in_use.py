"""Tables in use: the configuration in a table is traced, and nothing in a table stops training."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.collective import Collective
from jaxcoll.configurations import Config, Task
from jaxcoll.errors import TableWarning
from jaxcoll.execute.choice.defaults import FIRST_ROWS, default_schedule, default_topology
from jaxcoll.tune.in_use import ByTable, this_machine, use
from jaxcoll.tune.table import Table
from jaxcoll.tune.table_file import Machine

RANKS, DEFAULT = 4, Config({"algorithm": "default"})
RING = Config({"algorithm": "ring"})


def step(length: int):
    """A jitted sum over 4 ranks of ``length`` floats, and its operand."""
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("i",))
    summed = jax.shard_map(lambda x: jc.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    return jax.jit(summed), jnp.arange(RANKS * length, dtype=jnp.float32)


def task(nbytes: int) -> Task:
    return Task("all_reduce", nbytes, "float32", RANKS, 1, default_topology(RANKS).digest)


def table_of(config: Config, nbytes: int = 256, machine: Machine | None = None) -> Table:
    table = Table()
    table.choose(task(nbytes), DEFAULT, config, 1e-6, machine or this_machine())
    return table


def text_of(length: int) -> str:
    """The program of ``step`` as it is traced now."""
    run, x = step(length)
    return run.lower(x).as_text()


def sums(length: int) -> np.ndarray:
    run, x = step(length)
    return np.asarray(run(x))


def test_a_row_is_traced_for_its_sizes_alone():
    table = table_of(RING)
    table.choose(task(1024), DEFAULT, Config({"algorithm": "native"}), 1e-6, this_machine())
    with use(table):
        assert "collective_permute" in text_of(64)
        assert "collective_permute" in text_of(128)  # 512 B: equally near, the smaller one answers
        assert "collective_permute" not in text_of(129)
        assert "all_reduce" in text_of(256)
    assert "collective_permute" not in text_of(64)


def test_one_jitted_function_runs_by_the_table_that_is_in_use():
    run, x = step(64)
    expected = np.asarray(x).reshape(RANKS, -1).sum(0)
    native, ring = Config({"algorithm": "native"}), Config({"algorithm": "ring", "chunks": 2})
    for table in (Table(), table_of(native), table_of(ring), table_of(native)):
        with use(table):
            np.testing.assert_array_equal(run(x), expected)
            assert ("collective_permute" in run.lower(x).as_text()) == (
                ByTable(table, this_machine()).config(task(256)) == ring
            )
    np.testing.assert_array_equal(run(x), expected)


def test_an_explicit_schedule_is_not_overruled():
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("i",))
    summed = jax.shard_map(
        lambda x: jc.psum(x, "i", schedule="ring"), mesh=mesh, in_specs=P("i"), out_specs=P()
    )
    with use(table_of(Config({"algorithm": "native"}))):
        assert "all_reduce" not in jax.jit(summed).lower(jnp.ones(256)).as_text()


@pytest.mark.parametrize(
    "config",
    [
        Config({"algorithm": "no_such_synthesizer"}),
        Config({"algorithm": "ring", "chunks": 0}),
        Config({"algorithm": "ring", "no_such_parameter": 1}),
        Config({"algorithm": "ring", "lowering": "no_such_lowering"}),
    ],
)
def test_a_row_that_is_refused_is_skipped_by_name(config):
    with use(table_of(config)), pytest.warns(TableWarning, match="skipped the configuration"):
        result = sums(64)
    np.testing.assert_array_equal(result, sums(64))


def test_files_that_cannot_be_used_are_skipped_and_training_goes_on(tmp_path):
    (tmp_path / "cut.json").write_text('{"format": "jaxcoll.tuner-tab')
    table_of(DEFAULT, machine=Machine("cpu: of others", "0.1")).save(tmp_path / "foreign.json")
    table_of(RING).save(tmp_path / "good.json")
    skipped: list[str] = []
    names = ("cut.json", "absent.json", "foreign.json", "good.json")
    with use(*(tmp_path / name for name in names), skipped=skipped.append) as table:
        assert table.machines() == (this_machine(),)
        assert "collective_permute" in text_of(64)
    assert [name for line in skipped for name in names if name in line] == list(names[:3])


def test_a_quarantined_row_is_not_traced():
    table = table_of(RING)
    table.quarantine(task(256), RING, "wrong result", this_machine())
    with use(table):
        assert "collective_permute" not in text_of(64)


def test_rows_of_another_machine_are_not_traced():
    table = table_of(RING, machine=Machine("tpu: v9", jax.__version__))
    with use(table):
        assert "collective_permute" not in text_of(64)


def test_equal_tables_share_programs_and_later_changes_have_no_effect():
    table = table_of(DEFAULT)
    mine, copy = ByTable(table, this_machine()), ByTable(table_of(DEFAULT), this_machine())
    assert mine == copy
    assert hash(mine) == hash(copy)
    table.choose(task(256), DEFAULT, Config({"algorithm": "native"}), None, this_machine())
    assert mine.config(task(256)) == DEFAULT
    assert ByTable(table, this_machine()) != mine


# ---------------------------------------------------------------------- first rows


@pytest.mark.parametrize("backend", [*FIRST_ROWS, "metal"])
def test_the_first_rows_are_todays_thresholds(backend):
    def name(kind, shard_bytes, groups: Any = None, root=None):
        collective = Collective(kind, 8, 1, groups, root)
        return default_schedule(collective, shard_bytes, backend).provenance.synthesizer

    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        assert name(kind, 0) == name(kind, (96 << 10) - 1) == "bucket"
        assert name(kind, 96 << 10) == name(kind, 1 << 30) == "ring"
    assert name("all_to_all", 0) == name("all_to_all", 1 << 30) == "direct"
    assert name("broadcast", 1 << 30, root=1) == "binomial"
    no_grid = ((0, 3), (1, 2), (4, 7), (5, 6))
    assert name("all_reduce", 0, no_grid) == "ring"
