"""Plans as versioned JSON.

The network and the hardware that priced the plan are in the file too. They are left out if they are
classes or charges of the user's own, which a file cannot hold.

Files are not trusted (see ``jaxcoll.io.json``): decisions that no search could have made are
refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jaxcoll import fields as readers
from jaxcoll.errors import FormatError, JaxcollError, shown
from jaxcoll.io import dumps as dump_network
from jaxcoll.io import loads as load_network
from jaxcoll.synth.registry import REGISTRY
from jaxcoll.topology import Topology
from tensorstate.collective_costs import AlphaBetaCosts, CollectiveCostModel, ScheduleCosts
from tensorstate.cost.cost import SearchOptions
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.export.plan_file import Leaf, OperatorKey, PlanFile
from tensorstate.hardware import HARDWARE, Hardware
from tensorstate.ir.graph import Phase
from tensorstate.ir.jaxprs import axis_names
from tensorstate.ir.placements import MeshShape, Placements
from tensorstate.ir.trace_context import OUTSIDE, TraceContext
from tensorstate.keeping import table
from tensorstate.keeping.base import Keeping
from tensorstate.keeping.table import Kept
from tensorstate.problem.pipeline import SCHEDULES

FORMAT = "tensorstate.plan/1"
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")
# The most mesh axes of a plan that is read; the largest microbatches, sizes and numbers of tensors.
MOST_AXES, MOST = 16, 2**40

T = TypeVar("T")


# ---------------------------------------------------------------------- writing


def dumps(content: PlanFile) -> str:
    """The JSON of a plan, one line per field. The same plan always gives the same bytes."""
    decisions, options = content.decisions, content.options
    names = sorted({operator.primitive for operator in content.operators})
    number = {name: k for k, name in enumerate(names)}
    written = {
        "format": FORMAT,
        "mesh": {"names": content.mesh.names, "sizes": content.mesh.sizes},
        "predicted": content.predicted,
        "options": {
            **{
                keeping.option: keeping in options.keepings
                for keeping in table.optional()
                if keeping.is_always_written or keeping in options.keepings
            },
            "memory_limit": _finite(options.memory_limit),
            "unlimited": options.memory_limit == math.inf,
            "objective": options.objective,
        },
        "found": {**content.found, "bound": _finite(content.found["bound"])},
        "microbatches": content.microbatches,
        "batch": content.batch,
        # Without padding, stages, pairs and meshes the bytes are the same as before the format had
        # them, so one format number is enough.
        **({"pad_to": sorted(content.pad_to.items())} if content.pad_to else {}),
        **({} if content.stages is None else {"stages": content.stages}),
        **({} if content.schedule == "gpipe" else {"schedule": content.schedule}),
        **({"paired_loops": True} if content.has_pairs else {}),
        **({"untied": sorted(content.untied.items())} if content.untied else {}),
        **({} if content.context.mesh.empty else {"traced": _write_context(content.context)}),
        "hardware": _write_hardware(content.hardware),
        "network": _write_network(content.network, content.hardware),
        "inputs": [*map(_write_leaf, content.inputs)],
        "outputs": [*map(_write_leaf, content.outputs)],
        "input_classes": content.input_classes,
        "primitives": names,
        "operators": [
            [number[o.primitive], PHASES.index(o.phase), o.node_class, *o.sizes]
            for o in content.operators
        ],
        "strategies": decisions.strategies,
        **{
            keeping.name: nodes
            for keeping in table.optional()
            if (nodes := Kept(decisions.kept).nodes(keeping)) or keeping.is_always_written
        },
        "saved": [[tensor, *p] for tensor, p in sorted(decisions.saved.items())],
        "loop_resident": [[tensor, *p] for tensor, p in sorted(decisions.loop_resident.items())],
    }
    # One field per line, so that ``diff`` of two plans shows which decisions differ.
    lines = [
        f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'), allow_nan=False)}"
        for key, value in written.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value


def _write_leaf(leaf: Leaf) -> list:
    return [leaf.name, leaf.dtype, leaf.shape, _write_spec(leaf.spec)]


def _write_context(context: TraceContext) -> dict:
    return {
        "mesh": {"names": context.mesh.axis_names, "sizes": context.mesh.axis_sizes},
        "kinds": [kind.name for kind in context.mesh.axis_types],
        "set": context.is_set,
        "types": [_write_spec(spec) for spec in context.types],
    }


def _write_spec(spec: PartitionSpec | None) -> list | None:
    return None if spec is None else [axis_names(axes) for axes in spec]


def _write_hardware(hardware: Hardware | None) -> str | dict | None:
    # By name if it is one of ours: a later version then prices the plan by its own figures.
    if hardware is None:
        return None
    if HARDWARE.get(hardware.name) == hardware:
        return hardware.name
    if hardware.execution is not None:  # measured charges have a file of their own
        return None
    return {
        "name": hardware.name,
        "flops": sorted([size, float(rate)] for size, rate in hardware.flops.items()),
        "memory_bandwidth": float(hardware.memory_bandwidth),
        "memory": float(hardware.memory),
        **({} if hardware.overlaps else {"overlaps": False}),
        **({} if hardware.has_ragged else {"has_ragged": False}),
        **({} if hardware.holds_host_copies else {"holds_host_copies": False}),
        **(
            {}
            if hardware.host_bandwidth is None
            else {"host_bandwidth": float(hardware.host_bandwidth)}
        ),
    }


def _write_network(network: CollectiveCostModel | None, hardware: Hardware | None) -> dict | None:
    """A cost model of this library whose parameters a file can hold; else ``None``."""
    # ``type(...) is``: a subclass prices differently, by code that a file does not have.
    if type(network) is AlphaBetaCosts:
        return {"alpha": list(network.alpha), "bandwidth": list(network.bandwidth)}
    if type(network) is not ScheduleCosts:
        return None
    known = hardware is not None and HARDWARE.get(hardware.name) == hardware
    charged = network.execution is not None
    if charged and not (known and hardware is not None and network.execution == hardware.execution):
        return None
    if any(REGISTRY.get(each.name) is not type(each) for each, _ in network.candidates):
        return None
    # The network was relabeled to the order of the mesh. The file has it as it was given, so that
    # its ranks are those of the user's own files.
    topology = network.topology.relabel(network.device_order)
    return {
        "topology": json.loads(dump_network(topology)),
        "device_order": list(network.device_order),
        "seed": network.seed,
        "candidates": [
            [each.name, chunks, readers.encode(_parameters(each), "candidates")]
            for each, chunks in network.candidates
        ],
        "charged": charged,
    }


def _parameters(synthesizer: Any) -> dict[str, Any]:
    fields = dataclasses.fields(synthesizer)
    return {field.name: getattr(synthesizer, field.name) for field in fields if field.init}


# ---------------------------------------------------------------------- reading


def loads(text: str) -> PlanFile:
    """The plan of a text that ``dumps`` has written.

    Raises:
        FormatError: the text is not one well-formed plan of a known version.
    """
    value = readers.parse(text)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        given = value.get("format") if isinstance(value, dict) else value
        raise FormatError(
            f'expected a JSON object whose "format" is {FORMAT!r}, got {readers.glimpse(given)}: '
            "plans are written by Plan.save"
        )
    try:
        return _read(readers.Fields(value, "plan"))
    except FormatError:
        raise
    except JaxcollError as error:  # from a constructor: only constructors check the values
        raise FormatError(f"the content of this plan is refused: {error}") from error


# A number of a class, a node or a tensor, or a size. Python's integers have no bound, and arrays
# made from them would overflow.
_whole = readers.whole(0, MOST)


def _amount(value: object, where: str) -> float:
    """Seconds or bytes."""
    read = readers.number(value, where)
    if read < 0:
        raise FormatError(f"{where} must not be negative, got {shown(value)}")
    return read


def _read(fields: readers.Fields) -> PlanFile:
    fields.take("format", readers.text)
    mesh = fields.take("mesh", _read_mesh)
    hardware = fields.optional("hardware", _read_hardware)
    network = fields.optional("network", lambda v, name: _read_network(v, name, mesh, hardware))
    primitives = fields.take("primitives", readers.list_of(readers.text))
    axes = len(mesh.sizes)
    content = PlanFile(
        mesh=mesh,
        predicted=fields.take("predicted", _numbers("compute", "communication", "memory")),
        options=fields.take("options", _read_options),
        found=fields.take("found", _read_found),
        microbatches=fields.take("microbatches", readers.whole(1, MOST)),
        batch=fields.optional("batch", readers.text),
        hardware=hardware,
        network=network,
        inputs=fields.take("inputs", readers.list_of(_leaf_reader(mesh))),
        outputs=fields.take("outputs", readers.list_of(_leaf_reader(mesh))),
        input_classes=fields.take("input_classes", readers.list_of(_whole)),
        operators=fields.take("operators", readers.list_of(_operator_reader(primitives))),
        decisions=Decisions(
            fields.take("strategies", readers.list_of(_placements(axes))),
            _read_kept(fields),
            fields.take("saved", _copies(axes)),
            fields.take("loop_resident", _copies(axes)),
        ),
        pad_to=fields.optional("pad_to", _read_padding) or {},
        stages=fields.optional("stages", readers.text),
        schedule=fields.optional("schedule", _one_of(SCHEDULES)) or "gpipe",
        has_pairs=fields.optional("paired_loops", readers.flag) or False,
        untied=fields.optional("untied", _read_untied) or {},
        context=fields.optional("traced", _read_context) or OUTSIDE,
    )
    fields.end()
    if content.stages is not None and content.stages not in mesh.names:
        raise FormatError(f"stages must be an axis of the mesh, got {shown(content.stages)}")
    return content


def _one_of(choices: Sequence[T]) -> Callable[[object, str], T]:
    def read(value: object, where: str) -> T:
        for choice in choices:
            if value == choice:
                return choice
        raise FormatError(
            f"{where} must be one of {', '.join(map(str, choices))}, got {shown(value)}"
        )

    return read


def _read_mesh(value: object, where: str) -> MeshShape:
    fields = readers.Fields(value, where)
    names = fields.take("names", readers.list_of(readers.text))
    sizes = fields.take("sizes", readers.list_of(readers.whole(1, MOST)))
    fields.end()
    if len(names) != len(sizes) or len(set(names)) < len(names) or len(names) > MOST_AXES:
        raise FormatError(
            f"{where} must have one size for each axis, and at most {MOST_AXES} axes of "
            "different names"
        )
    return MeshShape.of(dict(zip(names, sizes, strict=True)))


def _read_context(value: object, where: str) -> TraceContext:
    def read_type(value: object, where: str) -> PartitionSpec | None:
        if value is None:
            return None
        return _read_spec(value, where, mesh, dims=len(readers.items(value, where)))

    fields = readers.Fields(value, where)
    mesh = fields.take("mesh", _read_mesh)
    kinds = fields.take("kinds", readers.list_of(_one_of([kind.name for kind in AxisType])))
    is_set = fields.take("set", readers.flag)
    types = fields.take("types", readers.list_of(read_type))
    fields.end()
    if len(kinds) != len(mesh.names):
        raise FormatError(f"{where}.kinds must have one kind for each of {len(mesh.names)} axes")
    typed = tuple(AxisType[kind] for kind in kinds)
    return TraceContext(AbstractMesh(mesh.sizes, mesh.names, axis_types=typed), is_set, types)


def _numbers(*names: str) -> Callable[[object, str], dict[str, float]]:
    def read(value: object, where: str) -> dict[str, float]:
        fields = readers.Fields(value, where)
        numbers = {name: fields.take(name, _amount) for name in names}
        fields.end()
        return numbers

    return read


def _read_options(value: object, where: str) -> SearchOptions:
    fields = readers.Fields(value, where)
    # JSON has no infinity. A lone limit of null is the default, the memory of the device.
    limit = fields.optional("memory_limit", readers.number)
    unlimited = fields.take("unlimited", readers.flag)
    options = SearchOptions(
        _read_allowed(fields),
        math.inf if unlimited else limit,
        fields.take("objective", readers.text),
    )
    fields.end()
    return options


def _read_allowed(fields: readers.Fields) -> tuple[Keeping, ...]:
    flags = {}
    for keeping in table.optional():
        read = fields.take if keeping.is_always_written else fields.optional
        flags[keeping.option] = read(keeping.option, readers.flag) or False
    return table.allowed(**flags)


def _read_kept(fields: readers.Fields) -> dict[int, Keeping]:
    kept: dict[int, Keeping] = {}
    for keeping in table.optional():
        read = fields.take if keeping.is_always_written else fields.optional
        nodes = read(keeping.name, readers.list_of(_whole)) or ()
        twice = sorted(kept.keys() & set(nodes))
        if twice:
            raise FormatError(
                f"{keeping.name} must not hold node {twice[0]}, which is already {kept[twice[0]]}"
            )
        kept |= dict.fromkeys(sorted(set(nodes)), keeping)
    return kept


def _read_found(value: object, where: str) -> dict[str, Any]:
    fields = readers.Fields(value, where)
    bound = fields.optional("bound", readers.number)
    found = {
        "objective": fields.take("objective", _amount),
        "bound": -math.inf if bound is None else bound,
        "method": fields.take("method", readers.text),
        "seconds": fields.take("seconds", _amount),
    }
    fields.end()
    return found


def _read_padding(value: object, where: str) -> dict[int, int]:
    rows = readers.list_of(readers.list_of(readers.whole(2, MOST)))(value, where)
    if any(len(row) != 2 or not row[0] < row[1] <= 2 * row[0] for row in rows):
        raise FormatError(
            f"{where} must be pairs of a size and a larger size, at most twice as large"
        )
    sizes = dict(rows)
    if len(sizes) < len(rows):
        raise FormatError(f"{where} names a size twice")
    return sizes


def _read_untied(value: object, where: str) -> dict[int, int]:
    rows = readers.list_of(readers.list_of(_whole))(value, where)
    if any(len(row) != 2 for row in rows):
        raise FormatError(f"{where} must be pairs of the number of an argument and of its group")
    return dict(rows)


def _read_hardware(value: object, where: str) -> Hardware:
    if isinstance(value, str):
        if value not in HARDWARE:
            raise FormatError(f"{where} must be one of {', '.join(HARDWARE)}, got {shown(value)}")
        return HARDWARE[value]
    fields = readers.Fields(value, where)
    name = fields.take("name", readers.text)
    pairs = fields.take("flops", readers.list_of(readers.list_of(readers.number)))
    if any(len(pair) != 2 or not pair[0].is_integer() for pair in pairs):
        raise FormatError(f"{where}.flops must be pairs of bytes and rate")
    bandwidth, memory = (fields.take(key, readers.number) for key in ("memory_bandwidth", "memory"))
    overlaps = fields.optional("overlaps", readers.flag) is not False
    has_ragged = fields.optional("has_ragged", readers.flag) is not False
    host = fields.optional("host_bandwidth", readers.number)
    holds = fields.optional("holds_host_copies", readers.flag) is not False
    fields.end()
    rates = {int(size): rate for size, rate in pairs}
    return Hardware(
        name, rates, bandwidth, memory,
        overlaps=overlaps, has_ragged=has_ragged, host_bandwidth=host, holds_host_copies=holds,
    )  # fmt: skip


def _read_network(
    value: object, where: str, mesh: MeshShape, hardware: Hardware | None
) -> CollectiveCostModel:
    fields = readers.Fields(value, where)
    numbers = readers.list_of(readers.number)
    if "alpha" in fields.left:
        costs = AlphaBetaCosts(
            mesh, fields.take("alpha", numbers), fields.take("bandwidth", numbers)
        )
        fields.end()
        return costs
    topology = fields.take("topology", _read_topology)
    order = fields.take("device_order", readers.column(readers.INT32)).tolist()
    seed = fields.take("seed", _whole)
    candidates = fields.take("candidates", readers.list_of(_read_candidate))
    charged = fields.take("charged", readers.flag)
    fields.end()
    execution = hardware.execution if charged and hardware is not None else None
    return ScheduleCosts(
        topology, mesh, device_order=order, candidates=candidates, seed=seed, execution=execution
    )


def _read_topology(value: object, where: str) -> Topology:
    topology = load_network(json.dumps(value))
    if not isinstance(topology, Topology):
        raise FormatError(f"{where} must be a network, got {type(topology).__name__}")
    return topology


def _read_candidate(value: object, where: str) -> tuple[Any, int]:
    parts = readers.items(value, where)
    if len(parts) != 3:
        raise FormatError(f"{where} must be a name, chunks and parameters")
    name, chunks = readers.text(parts[0], where), readers.whole(1, readers.INT32)(parts[1], where)
    # A name of ours, with parameters that its own dataclass checks: a file cannot name code.
    if name not in REGISTRY:
        raise FormatError(f"{where}: no synthesizer is called {shown(name)}")
    parameters = readers.decode_object(parts[2], where)
    try:
        return REGISTRY[name](**parameters), chunks
    except TypeError as error:
        raise FormatError(
            f"{where}: {name} does not take these parameters: {shown(str(error))}"
        ) from None


def _leaf_reader(mesh: MeshShape) -> Callable[[object, str], Leaf]:
    def read(value: object, where: str) -> Leaf:
        parts = readers.items(value, where)
        if len(parts) != 4:
            raise FormatError(f"{where} must be a name, dtype, shape and sharding")
        shape = readers.list_of(_whole)(parts[2], where)
        spec = None if parts[3] is None else _read_spec(parts[3], where, mesh, len(shape))
        return Leaf(readers.text(parts[0], where), readers.text(parts[1], where), shape, spec)

    return read


def _read_spec(value: object, where: str, mesh: MeshShape, dims: int) -> PartitionSpec:
    axes = readers.list_of(readers.list_of(readers.text))(value, where)
    named = [name for of_dim in axes for name in of_dim]
    if len(axes) > dims or len(set(named)) < len(named) or not set(named) <= set(mesh.names):
        raise FormatError(
            f"{where} must shard at most {dims} dimensions along axes of the mesh, each axis once"
        )
    one = (names if len(names) > 1 else names[0] if names else None for names in axes)
    return PartitionSpec(*one)


def _operator_reader(primitives: Sequence[str]) -> Callable[[object, str], OperatorKey]:
    def read(value: object, where: str) -> OperatorKey:
        row: tuple[int, ...] = readers.list_of(_whole)(value, where)
        if len(row) < 3 or row[0] >= len(primitives) or row[1] >= len(PHASES):
            raise FormatError(f"{where} must be a primitive, a phase, a class, and sizes")
        return OperatorKey(primitives[row[0]], PHASES[row[1]], row[3:], row[2])

    return read


def _placements(axes: int) -> Callable[[object, str], Placements]:
    def read(value: object, where: str) -> Placements:
        # Only the form is checked here; ``PlanFile.check_decisions`` asks whether a tensor has
        # these positions, once there is a step.
        row = readers.list_of(readers.whole(-(2**16), 2**16))(value, where)
        if len(row) != axes:
            raise FormatError(f"{where} must have a placement for each of {axes} mesh axes")
        return row

    return read


def _copies(axes: int) -> Callable[[object, str], dict[int, Placements]]:
    def read(value: object, where: str) -> dict[int, Placements]:
        rows = readers.list_of(_placements(axes + 1))(value, where)
        copies = {tensor: tuple(placements) for tensor, *placements in rows}
        if len(copies) < len(rows):
            raise FormatError(f"{where} names a tensor twice")
        return copies

    return read
