"""Misuse of the tuner's data, of the files for NCCL and of the finder."""

from __future__ import annotations

from typing import Any

from jaxcoll import finder, tune
from jaxcoll.tune import nccl
from jaxcoll.tune.nccl import conf, nccl_tests, ncclx, shared_table
from jaxcoll.tune.table_file import Decision
from tests.misuse import fields_of

HERE = tune.Machine("cpu: 2 cores", "0.12.0")
TASK = tune.Task("all_reduce", 4096, "float32", 8)
RING = tune.Config({"algorithm": "ring", "protocol": "simple"})
TREE = tune.Config({"algorithm": "tree", "protocol": "ll"})
RULE = nccl.NcclRule("all_reduce", 0, 2**20, "ring", "ll128", nodes=1, ranks=8)
WORDS = tune.Parameter("algorithm", ("ring", "tree"), "implementation")
NUMBERS = tune.Parameter("chunks", (1, 2, 4), "resource")
SPACE = tune.Space.product((WORDS, NUMBERS), tune.Config({"algorithm": "ring", "chunks": 1}))
MEASURED = nccl_tests.Measurements(
    "all_reduce", 2, (nccl_tests.Measurement(4096, "float32", 1e-5, None, 0),)
)
FRONTIERS = finder.frontiers(8, 2)
FOUND = finder.find(8, 2)
POINT = FOUND.points[0]


def table() -> tune.Table:
    made = tune.Table()
    made.record(TASK, RING, 1e-3, HERE)
    made.choose(TASK, RING, TREE, 1e-3, HERE)
    return made


def of_new_table(name: str):
    """A method of a table of its own for each call, since some change it."""
    return lambda **arguments: getattr(table(), name)(**arguments)


def collected(function):
    """A function of an iterator, taken to its end."""
    return lambda **arguments: [*function(**arguments)]


CONFIG_OF = {"task": TASK, "config": RING, "machine": HERE}

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    # ------------------------------------------------------------------ configurations, tables
    "tune.Task": (tune.Task, fields_of(TASK)),
    "tune.Task.from_json": (tune.Task.from_json, {"value": TASK.to_json()}),
    "tune.Config": (tune.Config, {"values": {"algorithm": "ring", "chunks": 2}}),
    "tune.Config.from_json": (tune.Config.from_json, {"fields": {"algorithm": "ring"}}),
    "tune.Config.replace": (RING.replace, {"algorithm": "tree"}),
    "tune.Machine": (tune.Machine, fields_of(HERE)),
    "tune.Decision": (Decision, {"default": RING, "tuned": TREE, "seconds": 1.0, "generation": 1}),
    "tune.Parameter": (tune.Parameter, fields_of(NUMBERS)),
    "tune.Subspace": (tune.Subspace, {"implementation": RING, "resources": (NUMBERS,)}),
    "tune.Subspace.config": (SPACE.subspaces[0].config, {"index": (0,)}),
    "tune.Subspace.index": (SPACE.subspaces[0].index, {"config": SPACE.default}),
    "tune.Space": (tune.Space, fields_of(SPACE)),
    "tune.Fitted": (
        tune.Fitted,
        {
            "space": SPACE, "seed": 0, "first": (SPACE.default,), "budget": 9, "extended": 9,
            "noise": 0.02, "small": 0,
        },
    ),
    "tune.Fitted.tell": (
        lambda **given: tune.Fitted(SPACE).tell(**given), {"config": SPACE.default, "seconds": 1.0}
    ),
    "tune.Fitted.tell_failed": (
        lambda **given: tune.Fitted(SPACE).tell_failed(**given),
        {"config": SPACE.default, "why": "no memory"},
    ),
    "tune.Fitted.from_state": (
        tune.Fitted.from_state, {"space": SPACE, "state": tune.Fitted(SPACE).state()}
    ),
    "tune.Space.product": (
        tune.Space.product, {"parameters": (WORDS,), "default": tune.Config({"algorithm": "ring"})}
    ),
    "tune.Space.nccl": (tune.Space.nccl, {"default": tune.Space.nccl().default}),
    "tune.Space.subspace_of": (SPACE.subspace_of, {"config": SPACE.default}),
    "tune.Space.bounded": (SPACE.bounded, {"chunks": (1, 2), "default": SPACE.default}),
    "tune.Space.pruned": (SPACE.pruned, {"valid": lambda config: True, "default": SPACE.default}),
    "tune.Space.split": (
        SPACE.split,
        {
            "option": tune.Parameter("lowering", ("scan", "ssa"), "implementation"),
            "value": "scan", "where": None,
        },
    ),
    "tune.Table": (
        tune.Table,
        {
            "history": table().history, "decisions": table().decisions,
            "quarantined": {(HERE, TASK, TREE): "hung"},
        },
    ),
    "tune.Table.record": (of_new_table("record"), {**CONFIG_OF, "seconds": 1.0}),
    "tune.Table.choose": (
        of_new_table("choose"),
        {"task": TASK, "default": RING, "tuned": TREE, "seconds": 1.0, "machine": HERE},
    ),
    "tune.Table.quarantine": (of_new_table("quarantine"), {**CONFIG_OF, "why": "hung"}),
    "tune.Table.begin_trial": (of_new_table("begin_trial"), CONFIG_OF),
    "tune.Table.end_trial": (of_new_table("end_trial"), CONFIG_OF),
    "tune.Table.is_quarantined": (of_new_table("is_quarantined"), CONFIG_OF),
    "tune.Table.times": (of_new_table("times"), {"task": TASK, "machine": HERE}),
    "tune.Table.lookup": (of_new_table("lookup"), {"task": TASK, "machine": HERE}),
    "tune.Table.ranges": (of_new_table("ranges"), {"task": TASK, "machine": HERE}),
    "tune.Table.merge": (of_new_table("merge"), {"other": table()}),
    "tune.Table.diff": (of_new_table("diff"), {"other": table()}),
    "tune.Table.show": (of_new_table("show"), {"machine": HERE}),
    "tune.Table.loads": (tune.Table.loads, {"text": table().dumps()}),
    "tune.Table.load_usable": (tune.Table.load_usable, {"paths": ("none",), "machine": HERE}),
    # ------------------------------------------------------------------ NCCL
    "NcclRule": (nccl.NcclRule, fields_of(RULE)),
    "NcclRule.matches": (
        RULE.matches,
        {"collective": "all_reduce", "nbytes": 4, "nodes": 1, "ranks": 8, "pipelined_ops": 1},
    ),
    "nccl.answer": (
        nccl.answer,
        {
            "rules": (RULE,), "collective": "all_reduce", "nbytes": 4, "nodes": 1, "ranks": 8,
            "pipelined_ops": 1,
        },
    ),
    "nccl.rules_of": (nccl.rules_of, {"table": table(), "machine": HERE, "nodes": 1}),
    "nccl.conf.dumps": (conf.dumps, {"rules": (RULE,)}),
    "nccl.conf.loads": (conf.loads, {"text": conf.dumps((RULE,))}),
    "nccl.ncclx.dumps_csv": (ncclx.dumps_csv, {"rules": (RULE,), "columns": 8}),
    "nccl.ncclx.dumps_json": (ncclx.dumps_json, {"rules": (RULE,)}),
    "nccl.ncclx.loads_csv": (
        ncclx.loads_csv, {"text": ncclx.dumps_csv((RULE,)), "ranks": 8, "nodes": 1}
    ),
    "nccl.ncclx.loads_json": (
        ncclx.loads_json, {"text": ncclx.dumps_json((RULE,)), "ranks": 8, "nodes": 1}
    ),
    "nccl.environment": (
        nccl.environment.environment, {"table": table(), "machine": HERE}
    ),
    "nccl.nccl_tests.loads": (nccl_tests.loads, {"text": ""}),
    "nccl.nccl_tests.loads_json": (nccl_tests.loads_json, {"text": "{}"}),
    "nccl.nccl_tests.Measurements.add_to": (
        lambda table, **others: MEASURED.add_to(table, **others),
        {"table": tune.Table(), "config": RING, "machine": HERE, "collective": None},
    ),
    "nccl.shared_table.SharedTable": (
        shared_table.SharedTable, {"path": "/dev/null", "capacity": 4}
    ),
    "nccl.shared_table.build": (
        shared_table.build, {"target": "/dev/null", "compiler": "no compiler"}
    ),
    # ------------------------------------------------------------------ the finder
    "finder.find": (
        finder.find,
        {
            "n": 8, "degree": 2, "links": "one_way", "parallel": True, "rates": False,
            "executor": None, "progress": None,
        },
    ),
    "finder.frontiers": (
        finder.frontiers,
        {"largest": 6, "degree": 2, "measure": False, "executor": None, "progress": None},
    ),
    "finder.Frontiers.write_table": (
        FRONTIERS.write_table, {"path": "table.csv", "executor": None, "progress": None}
    ),
    "finder.Frontiers.loads": (finder.Frontiers.loads, {"text": "{}"}),
    "finder.Frontiers.found": (
        FRONTIERS.found, {"size": 8, "links": "one_way", "parallel": True, "rates": False}
    ),
    "finder.Frontiers[]": (FRONTIERS.__getitem__, {"size": 8}),
    "finder.Prices": (finder.Prices, fields_of(finder.Prices())),
    "finder.Prices.fixed_cost": (finder.Prices().fixed_cost, {"digraph": POINT.digraph}),
    "finder.Found.best": (
        FOUND.best,
        {"alpha": 1e-6, "bandwidth": 1e9, "all_reduce": {1e6: 1}, "all_to_all": None},
    ),
    "finder.Found.choices": (
        FOUND.choices,
        {
            "prices": finder.Prices(), "alpha": 1e-6, "bandwidth": 1e9, "all_reduce": {1e6: 1},
            "all_to_all": None,
        },
    ),
    "finder.FoundTopology.all_reduce_time": (
        POINT.all_reduce_time, {"alpha": 1e-6, "nbytes": 1e6, "bandwidth": 1e9}
    ),
    "finder.FoundTopology.all_to_all_time": (
        POINT.all_to_all_time, {"nbytes": 1e6, "bandwidth": 1e9}
    ),
    "finder.FoundTopology.schedule": (
        POINT.schedule, {"kind": "all_gather", "alpha": 1e-6, "link_bandwidth": 1e9}
    ),
    "finder.Construction.from_json": (
        finder.Construction.from_json, {"value": POINT.construction.to_json()}
    ),
    "finder.Construction.all_gather": (
        POINT.construction.all_gather, {"alpha": 1e-6, "link_bandwidth": 1e9}
    ),
}  # fmt: skip

# As meant, these are refused, so that no hostile value can have something made or run.
REFUSED = {
    "nccl.shared_table.SharedTable",
    "nccl.shared_table.build",
    "nccl.nccl_tests.loads",
    "nccl.nccl_tests.loads_json",
    "finder.Frontiers.loads",
}
