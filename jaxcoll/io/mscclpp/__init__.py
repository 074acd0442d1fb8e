"""MSCCL++ execution plans: schedules as the JSON that its executor runs, of version 0.8 and later.

``lowering`` makes the plan of a schedule, with as few blocks (``block``) as its operations allow
(``operation_count``); ``loads`` reads the schedule of such a plan.

Plans of other tools are proved by ``jaxcoll.prove``.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxcoll import fields
from jaxcoll.collective import Collective
from jaxcoll.errors import FormatError, ScheduleError, TopologyError
from jaxcoll.io.files import MAX_BYTES, load_text, write_text
from jaxcoll.io.mscclpp.lowering import Plan, lower
from jaxcoll.io.sends import MSCCL_WORDS, edges_of, leads
from jaxcoll.kinds import kind_of
from jaxcoll.numerics import checks
from jaxcoll.paths import Edges, shortest_routes
from jaxcoll.prove import NotProved, NotRead, prove_text
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

__all__ = ["dumps", "load", "loads", "lower", "registry", "save"]

_KINDS = {name: kind for kind, name in MSCCL_WORDS.items()}
_MOST_STEPS = 2**24
_Way = tuple[int, int, tuple[int, ...]]  # two ranks and the links between them


def dumps(schedule: Schedule, **options: Any) -> str:
    """The JSON of a schedule's plan; ``options`` are those of ``lower``.

    Raises:
        FormatError: see ``lower``.
    """
    return json.dumps(lower(schedule, **options), indent=1) + "\n"


def save(path: str | os.PathLike, schedule: Schedule, **options: Any) -> None:
    """Write the plan of a schedule, and beside it ``PATH.registry.json``; see ``lower``.

    Raises:
        OSError: a file cannot be written.
    """
    text = dumps(schedule, **options)
    write_text(path, text)
    name = os.fspath(path)
    write_text(f"{name}.registry.json", registry(json.loads(text), os.path.basename(name)))


def registry(plan: Plan, file: str) -> str:
    """The entry by which a runtime finds a plan: the arguments of ``ExecutionPlanHandle.create``.

    A plan does not state its number of ranks or of ranks per host. The registry compares both with
    the communicator's, and the collective, size and place with the call's.
    both with the communicator's, and the collective, size and place with the call's.
    """
    ranks = len(plan["gpus"])
    # A port channel joins hosts, so a rank and its peers over memory channels are on one host.
    near = [
        1
        + sum(len(set(c["connected_to"])) for c in gpu["channels"] if c["channel_type"] == "memory")
        for gpu in plan["gpus"]
    ]
    has_ports = any(c["channel_type"] == "port" for gpu in plan["gpus"] for c in gpu["channels"])
    entry = {
        "id": plan["name"], "file": file, "collective": plan["collective"], "world_size": ranks,
        "nranks_per_node": max(near) if has_ports else ranks, "inplace": plan["inplace"],
        "min_message_size": plan["min_message_size"],
        "max_message_size": plan["max_message_size"], "tags": {"default": 1},
    }  # fmt: skip
    return json.dumps({"plans": [entry]}, indent=1) + "\n"


def loads(text: str, topology: Topology) -> Schedule:
    """The schedule of a plan that ``dumps`` has written, verified.

    Operations state their step, which the runtime ignores. Plans of other tools do not; they can be
    proved (``jaxcoll prove``) but are not schedules of steps. If a plan differs, in any operation,
    from the plan of its schedule, it has been changed, and is proved before it is trusted.

    Args:
        topology: the network; messages use the link between two ranks or a shortest path.

    Raises:
        FormatError: the text is not such a plan, or a plan of MSCCL++ 0.7 or older.
        ScheduleError: it is not the collective that it states, or its operations do not carry it
            out.
        TopologyError: ranks that exchange messages have no path.
    """
    checks.instance(topology, Topology, "topology", TopologyError)
    plan = fields.parse(checks.text(text, "text", FormatError))
    if not isinstance(plan, dict) or not isinstance(plan.get("gpus"), list):
        raise FormatError('expected a plan: a JSON object with "gpus"')
    kind = _KINDS[checks.choice(plan.get("collective"), _KINDS, "collective", FormatError)]
    gpus = plan["gpus"]
    if len(gpus) != topology.num_ranks:
        raise FormatError(
            f"the plan is for {len(gpus)} ranks, but {topology} has {topology.num_ranks}"
        )
    rows = sorted(row for rank, gpu in enumerate(gpus) for row in _sends(gpu, rank, len(gpus)))
    if not rows and len(gpus) > 1:
        raise FormatError(
            "no operation states its step, so another tool wrote the plan; prove it instead"
        )
    # Buffers of a plan are in chunks: the input of an all_gather is a shard, else the output is.
    share = gpus[0].get("input_chunks" if kind_of(kind).starts_with_shard else "output_chunks")
    share = checks.integer(share, "chunks of a shard", FormatError, least=1, most=2**20)
    k = max(1, share // len(gpus)) if kind_of(kind).is_whole else share
    what = Collective(kind, len(gpus), k)
    fields.check_claims("the plan", len(gpus), what.num_chunks, what.num_deliveries, len(rows))
    edges, edge = _edges(topology, [(src, dst, path) for _, _, src, dst, _, _, path in rows])
    made = Schedule.from_sends(
        topology, what, [row[0] for row in rows], edge, [row[4] for row in rows],
        np.asarray([row[5] for row in rows], bool), edges=edges,
        provenance=Provenance("mscclpp", {"name": str(plan.get("name"))[:80]}),
    )  # fmt: skip
    verify(made)
    if not _is_plan_of(made, plan):
        try:
            prove_text(text, kind, len(gpus))
        except NotRead as error:
            raise FormatError(f"the plan cannot be proved: {error}") from None
        except NotProved as error:
            raise ScheduleError(f"the operations of the plan are wrong: {error}") from None
    return made


def _is_plan_of(schedule: Schedule, plan: Plan) -> bool:
    """Whether a plan equals exactly the plan of a schedule; tests prove these plans."""
    try:
        return dumps(schedule, name=plan.get("name")) == json.dumps(plan, indent=1) + "\n"
    except FormatError:  # no plan holds the schedule
        return False


def _edges(topology: Topology, ways: Sequence[_Way]) -> tuple[Edges, list[int]]:
    """The edges of sends, over the stated links or over shortest paths, and each send's edge."""
    path_of = {way: way[2] for way in ways}
    lost = [way for way in path_of if not leads(topology, way[2], *way[:2])]
    src, dst = np.asarray([way[:2] for way in lost], np.int64).reshape(-1, 2).T
    routed = shortest_routes(topology, src, dst)
    path_of |= {way: routed.path(e) for e, way in enumerate(lost)}
    return edges_of(topology, [path_of[way] for way in ways])


def _sends(gpu: object, rank: int, ranks: int) -> list[tuple[int, int, int, int, int, int, tuple]]:
    """(step, place, src, dst, chunk, adds, path) of the operations that state their step."""
    try:
        blocks, remote = gpu["threadblocks"], gpu["remote_buffers"]  # type: ignore[index]
        found = []
        # The executor, too, takes ranks and blocks by their places in their lists.
        for at, each in ((rank, gpu), *enumerate(blocks)):
            if each["id"] != at:  # type: ignore[index]
                raise FormatError(
                    f"gpus and blocks must be listed in order of their ids, but place {at} has "
                    "another id"
                )
        for block in blocks:
            # Buffers of a type may be listed in several parts, whose chunks are counted through.
            refs: defaultdict[str, list[int]] = defaultdict(list)
            for part in block["remote_buffer_refs"]:
                refs[part["access_channel_type"]] += part["remote_buffer_ids"]
            for op in block["ops"]:
                if "step" not in op or op["name"] not in ("put", "rre", "re"):
                    continue
                source = op["src_buff"][0]
                other, adds = op.get("from"), op["name"] != "put"
                if not adds:
                    there = remote[refs[op["channel_type"]][op["dst_buff"][0]["buffer_id"]]]
                    # Put into scratch on another host, and added from there.
                    if there["type"] == "s":
                        continue  # the receiver's sum states it
                    other = there["rank"]
                path = tuple(op["links"])
                first, size = source["index"], source["size"]
                numbers = [op["step"], op["place"], other, first, size, *path]
                whole = all(type(n) is int and 0 <= n < _MOST_STEPS for n in numbers)
                if not whole or other >= ranks or other == rank or size > 2**15:
                    what = checks.shown(numbers)
                    raise FormatError(
                        f"an operation of rank {rank} has numbers that are too large or not "
                        f"integers: {what}"
                    )
                ends = (other, rank) if adds else (rank, other)
                found += [
                    (op["step"], op["place"] + i, *ends, first + i, int(adds), path)
                    for i in range(size)
                ]
        return found
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise FormatError(
            f"gpu {rank} does not have the form of MSCCL++ 0.8 and later: {type(error).__name__}"
        ) from None


def load(path: str | os.PathLike, topology: Topology, max_bytes: int = MAX_BYTES) -> Schedule:
    """The schedule of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes, topology=topology)
