"""Cases of ``tests.misuse`` about published times."""

from __future__ import annotations

import dataclasses

import jaxcoll as jc
from jaxcoll import measured, topologies, validation
from jaxcoll.io.timings import Timing, Timings

TABLE = measured.tables()[0]
FIELDS = {field.name: getattr(TABLE, field.name) for field in dataclasses.fields(TABLE)}
OWN = Timings((Timing("all_gather", 8, 2**20, 1e-4),))
FEW = validation.predictions("sizes")[:3]

CASES = {
    "measured.Table": (measured.Table, FIELDS),
    "measured.curves_of": (
        measured.curves_of, {"machine": "h100-host", "collective": "all_gather"}
    ),
    "measured.dumps": (measured.dumps, {"table": TABLE}),
    "measured.loads": (measured.loads, {"text": measured.dumps(TABLE)}),
    "measured.load": (measured.load, {"path": "nowhere.json"}),
    "measured.save": (measured.save, {"path": "made.json", "table": TABLE}),
    "measured.from_xla": (measured.from_xla, {"path": "nowhere.so", "date": ""}),
    "measured.machine_like": (measured.machine_like, {"topology": topologies.ring(4)}),
    "measured.machine_of_log": (
        measured.machine_of_log,
        {"text": "#  Rank  0 Group  0 Pid 1 on a device  0 [0x00] NVIDIA H100 80GB HBM3"},
    ),
    "expect": (
        jc.expect,
        {"network": "mi300x-host", "collective": "all_gather", "sizes": [2**20], "log": OWN},
    ),
    "contest.contest": (
        jc.contest.contest,
        {"network": "mi300x-host", "collective": "all_gather", "sizes": [2**20], "root": None},
    ),
    "measured.machine_of": (measured.machine_of, {"name": "h100-host"}),
    "validation.of_links": (
        lambda **given: list(validation.of_links(**given)), {"machine": "mi300x-host", "seed": 0}
    ),
    "validation.linked": (validation.linked, {"machine": "mi300x-host"}),
    "validation.predictions": (validation.predictions, {"way": "sources", "seed": 0}),
    "validation.errors": (
        validation.errors, {"found": FEW, "by": ("machine", "size_class")}
    ),
    "measured.tables": (measured.tables, {}),
}  # fmt: skip
