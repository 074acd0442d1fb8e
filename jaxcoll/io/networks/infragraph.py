"""InfraGraph: devices with components and edges, and an infrastructure with their instances.

A model (3.x, YAML or JSON) is expanded here, not by its service: the service's graph has one edge
between two components, while a model may have several, which are parallel links. Components of the
choice ``xpu`` are ranks; all others are vertices that forward. Edges go both ways; the scheme
``one2one`` joins components in turn, ``many2many`` each with each, ``ring`` each with the next.

Bandwidths are per direction. If a link leaves them out, they are arguments. Gigatransfers per
second depend on the lanes and are refused. YAML needs PyYAML: ``pip install pyyaml``; aliases in it
are refused, because a few lines of them can grow to any size.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jaxcoll import fields as readers
from jaxcoll.errors import AssumptionWarning, FormatError, JaxcollError, named, shown, warn_user
from jaxcoll.fields import glimpse
from jaxcoll.io.files import load_text
from jaxcoll.io.networks.link_types import ALPHA, Wire, wired
from jaxcoll.numerics import checks
from jaxcoll.topology import Topology

MAX_BYTES = 2**20
_MOST_VERTICES, _MOST_WIRES, _MOST_NESTED = 2**16, 2**18, 8
_BANDWIDTH = 25e9  # of a link that does not state one
_RANK = "xpu"
_MOST_DEPTH, _MOST_ON_A_LINE = 32, 8  # of brackets, and of items that begin
_PART = re.compile(
    r"([A-Za-z0-9_-]{1,80})(?:\[([0-9]{0,7})(?::([0-9]{0,7}))?(?::([0-9]{1,7}))?\])?"
)
_RATES = {"gigabits_per_second": 1e9 / 8, "gigabytes_per_second": 1e9}
_TIMES = {"ms": 1e3, "us": 1e6, "ns": 1e9}  # in a second
_SCHEMES = ("one2one", "many2many", "ring")

Speed = tuple[float | None, float | None]  # seconds and bytes per second, None if not stated
Device = dict[str, Any]


def loads(text: str, *, alpha: float | None = None, bandwidth: float | None = None) -> Topology:
    """The network of a model; ranks are its components of the choice ``xpu``, in its order.

    Args:
        alpha, bandwidth: seconds and bytes per second of links that do not state theirs; 0.7 us and
            25 GB/s, with a warning, if omitted.

    Raises:
        FormatError: the format is another one, names are undefined, devices contain themselves,
            there are more components or edges than are read, or ranks do not reach each other.
        ModuleNotFoundError: the text is YAML and PyYAML is not installed.
    """
    checks.optional(alpha, checks.nonnegative, "alpha", FormatError)
    checks.optional(bandwidth, checks.positive, "bandwidth", FormatError)
    parsed = _parsed(checks.text(text, "text", FormatError))
    # The project's own examples have a single key at the top.
    if isinstance(parsed, dict) and set(parsed) == {"infrastructure"}:
        parsed = parsed["infrastructure"]
    whole = readers.Fields(parsed, "the model")
    name = whole.take("name", readers.text, "")
    model = _Model(whole)
    vertices = list(model.instances())
    if not any(kind == _RANK for _, kind in vertices):
        raise FormatError(
            f"none of the model's {len(vertices)} components has the choice {_RANK!r}, which makes "
            "it a rank; give it to the accelerators"
        )
    # ``Topology`` numbers ranks before switches, while a model has them in any order. Each kind
    # keeps the model's order.
    ordered = [*(n for n, k in vertices if k == _RANK), *(n for n, k in vertices if k != _RANK)]
    place = {vertex: i for i, vertex in enumerate(ordered)}
    wires: list[Wire] = []
    silent: set[str] = set()
    for a, b, link, (seconds, rate) in model.wires():
        if a not in place or b not in place:
            raise FormatError(
                f"an edge joins {shown(a)} and {shown(b)}; name a component of each, since a "
                "device is not an end"
            )
        if (seconds is None and alpha is None) or (rate is None and bandwidth is None):
            silent.add(link)
        own = seconds if seconds is not None else ALPHA if alpha is None else float(alpha)
        speed = rate if rate is not None else _BANDWIDTH if bandwidth is None else float(bandwidth)
        wires.append((place[a], place[b], own, speed))
    if silent:
        warn_user(
            f"the links {', '.join(sorted(silent)[:5])} say no latency or no bandwidth; assumed: "
            "0.7 us, 25 GB/s; give alpha= and bandwidth=",
            AssumptionWarning,
        )
    ranks = sum(kind == _RANK for _, kind in vertices)
    try:
        return wired(ranks, ordered, wires, name)
    except JaxcollError as error:
        raise FormatError(f"the model is refused: {error}") from error


def _parsed(text: str) -> object:
    if text.lstrip("\ufeff \t\r\n").startswith("{") and '"' in text:
        return readers.parse(text)
    try:
        import yaml
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "models in YAML are read by the package pyyaml; type: pip install pyyaml", name="yaml"
        ) from None
    _check_depth(text)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # The text is parsed twice, because the loader itself would expand aliases before they are
        # refused.
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                line = event.start_mark.line + 1
                raise FormatError(f"line {line}: aliases and anchors of YAML are not read")
        return yaml.load(text, Loader=loader)  # noqa: S506
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise FormatError(f"{where}not YAML: {shown(' '.join(str(error).split()))}") from None
    # PyYAML's constructors of dates, numbers and keys raise any error of Python.
    except (RecursionError, ValueError, TypeError, AttributeError, KeyError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"not YAML that is read here: {shown(str(error))}") from None


def _check_depth(text: str) -> None:
    """Refuse text nested deeper than any model: PyYAML needs quadratic time or its stack for it."""
    depth = 0
    for match in re.finditer(r"[\[\]{}]", text):
        depth += (match[0] in "[{") - (match[0] in "]}")
        if depth > _MOST_DEPTH:
            raise FormatError("the model is nested too deeply")
    for number, line in enumerate(text.splitlines(), 1):
        if max(line.count("- "), line.count("? ")) > _MOST_ON_A_LINE:
            raise FormatError(f"line {number}: the model is nested too deeply")


class _Model:
    """Devices, instances and edges of a model, checked as they are expanded."""

    def __init__(self, whole: readers.Fields):
        self.links = _links(whole, "links")
        self.devices: dict[str, Device] = {}
        for i, value in enumerate(whole.take("devices", readers.items)):
            fields = readers.Fields(value, f"devices[{i}]")
            parts = fields.take("components", readers.items)
            self.devices[fields.take("name", readers.text)] = {
                "parts": dict(_component(part, f"devices[{i}]") for part in parts),
                "links": _links(fields, "links"),
                "edges": fields.take("edges", readers.items, []),
            }
        self.made: dict[str, tuple[str, int]] = {}
        for i, value in enumerate(whole.take("instances", readers.items)):
            fields = readers.Fields(value, f"instances[{i}]")
            device = fields.take("device", readers.text)
            if device not in self.devices:
                raise FormatError(f"instances[{i}].device: there is no device {glimpse(device)}")
            count = fields.take("count", readers.whole(0, _MOST_VERTICES))
            self.made[fields.take("name", readers.text)] = device, count
        self.edges = whole.take("edges", readers.items, [])
        self.left = {"components": _MOST_VERTICES, "edges": _MOST_WIRES}

    def spend(self, what: str) -> None:
        """Count a component or an edge, within bounds."""
        self.left[what] -= 1
        if self.left[what] < 0:
            most = {"components": _MOST_VERTICES, "edges": _MOST_WIRES}[what]
            raise FormatError(f"the model has more than the {most} {what} that are read")

    def instances(self) -> Iterator[tuple[str, str]]:
        """Every component with its kind."""
        for name, (device, count) in self.made.items():
            for index in range(count):
                yield from self._parts(device, f"{name}.{index}", 0)

    def _parts(self, device: str, prefix: str, depth: int) -> Iterator[tuple[str, str]]:
        if depth > _MOST_NESTED or device not in self.devices:
            raise FormatError(f"the device {glimpse(device)} does not exist, or contains itself")
        for part, (count, kind) in self.devices[device]["parts"].items():
            for index in range(count):
                self.spend("components")
                if kind == "device":
                    yield from self._parts(part, f"{prefix}.{part}.{index}", depth + 1)
                else:
                    yield f"{prefix}.{part}.{index}", kind

    def wires(self) -> Iterator[tuple[str, str, str, Speed]]:
        """Every edge between two components with its link."""
        for name, (device, count) in self.made.items():
            for index in range(count):
                yield from self._inside(device, f"{name}.{index}", 0)
        for i, value in enumerate(self.edges):
            where = f"edges[{i}]"
            edge = readers.Fields(value, where)
            ends = [self._instance_end(edge, f"ep{side}", where) for side in (1, 2)]
            yield from self._joined(edge, ends, self.links, where)

    def _inside(self, device: str, prefix: str, depth: int) -> Iterator:
        if depth > _MOST_NESTED or device not in self.devices:
            raise FormatError(f"the device {glimpse(device)} does not exist, or contains itself")
        own = self.devices[device]
        for i, value in enumerate(own["edges"]):
            where = f"device {named(device)}: edges[{i}]"
            edge = readers.Fields(value, where)
            ends = []
            for side in ("ep1", "ep2"):
                end = readers.Fields(edge.take(side, lambda value, _: value), f"{where}.{side}")
                path = end.take("component", readers.text)
                outer = end.optional("device", readers.text)  # a component that is itself a device
                path = path if outer is None else f"{outer}.{path}"
                ends.append([f"{prefix}.{each}" for each in self._expanded(device, path, where)])
            yield from self._joined(edge, ends, own["links"] | self.links, where)
        for part, (count, kind) in own["parts"].items():
            if kind == "device":
                for index in range(count):
                    yield from self._inside(part, f"{prefix}.{part}.{index}", depth + 1)

    def _instance_end(self, edge: readers.Fields, side: str, where: str) -> list[str]:
        end = readers.Fields(edge.take(side, lambda value, _: value), f"{where}.{side}")
        text, path = end.take("instance", readers.text), end.take("component", readers.text)
        match = _PART.fullmatch(text)
        if match is None or match[1] not in self.made:
            raise FormatError(f"{where}.{side}: there is no instance {glimpse(text)}")
        device, count = self.made[match[1]]
        below = list(self._expanded(device, path, where))
        return [f"{match[1]}.{i}.{each}" for i in _indices(match, count, where) for each in below]

    def _expanded(self, device: str, path: str, where: str) -> Iterator[str]:
        """Every component that a path such as ``nic[0:2].port[0]`` names."""
        names: list[str] = [""]
        for text in path.split(".")[: _MOST_NESTED + 1]:
            match = _PART.fullmatch(text)
            parts = self.devices[device]["parts"] if device in self.devices else {}
            if match is None or match[1] not in parts:
                raise FormatError(f"{where}: {glimpse(path)} names no component of {named(device)}")
            count, _ = parts[match[1]]
            indices = _indices(match, count, where)
            # Checked before they are listed: eight brackets of a thousand would give 10^24 names.
            if len(names) * len(indices) > _MOST_VERTICES:
                raise FormatError(f"{where}: more than {_MOST_VERTICES} components")
            names = [f"{name}.{match[1]}.{i}" for name in names for i in indices]
            device = match[1]
        return (name[1:] for name in names)

    def _joined(
        self, edge: readers.Fields, ends: list[list[str]], links: Mapping[str, Speed], where: str
    ) -> Iterator[tuple[str, str, str, Speed]]:
        scheme = edge.take("scheme", readers.text)
        link = edge.take("link", readers.text)
        if scheme not in _SCHEMES:
            raise FormatError(f"{where}.scheme must be one of {_SCHEMES}, got {glimpse(scheme)}")
        if link not in links:
            raise FormatError(f"{where}.link: there is no link {glimpse(link)}")
        a, b = ends
        if scheme == "ring":
            # Both ends may name the same components, each of which is in the ring once.
            both = list(dict.fromkeys([*a, *b]))
            pairs = zip(both, [*both[1:], *both[:1]], strict=True)
        else:
            # one2one pairs them in turn, as far as both ends have components.
            pairs = itertools.product(a, b) if scheme == "many2many" else zip(a, b, strict=False)
        for one, other in pairs:
            if one != other:
                self.spend("edges")
                yield one, other, link, links[link]


def _component(value: object, where: str) -> tuple[str, tuple[int, str]]:
    fields = readers.Fields(value, f"{where}.components")
    name = fields.take("name", readers.text)
    count = fields.take("count", readers.whole(0, _MOST_VERTICES))
    return name, (count, fields.take("choice", readers.text, "custom"))


def _links(fields: readers.Fields, key: str) -> dict[str, Speed]:
    """Latency and bandwidth of each link by its name."""
    links: dict[str, Speed] = {}
    for i, value in enumerate(fields.take(key, readers.items, [])):
        where = f"{fields.where}.{key}[{i}]"
        link = readers.Fields(value, where)
        name = link.take("name", readers.text)
        physical = link.optional("physical", lambda value, at: readers.Fields(value, at))
        speeds: list[float | None] = [None, None]
        for at, (what, units) in enumerate((("latency", _TIMES), ("bandwidth", _RATES))):
            said = physical and physical.optional(what, lambda v, at: readers.Fields(v, at))
            if said:
                known = [unit for unit in units if said.left.get(unit) is not None]
                # Gigatransfers per second are also refused here: their bytes depend on the lanes.
                if len(known) != 1:
                    raise FormatError(
                        f"{said.where} must be in exactly one of {', '.join(units)}, got {known}"
                    )
                number = said.take(known[0], readers.number)
                if number < 0 or (what == "bandwidth" and number == 0):
                    raise FormatError(f"{said.where} must be above 0, got {number:g}")
                unit = units[known[0]]
                speeds[at] = number / unit if what == "latency" else number * unit
        links[name] = speeds[0], speeds[1]
    return links


def _indices(match: re.Match[str], count: int, where: str) -> range:
    """The indices that ``[2]``, ``[0:4]`` or nothing selects among ``count``."""
    start, stop, step = match[2], match[3], match[4]
    if start is None:
        return range(count)
    if stop is None and step is None and start:
        low, high = int(start), int(start) + 1
    else:
        low, high = int(start or 0), int(stop) if stop else count
    if not 0 <= low <= high <= count or step == "0":
        raise FormatError(f"{where}: {glimpse(match[0])} must be within 0 to {count}")
    return range(low, high, int(step or 1))


def load(
    path: str | os.PathLike,
    *,
    alpha: float | None = None,
    bandwidth: float | None = None,
    max_bytes: int = MAX_BYTES,
) -> Topology:
    """The network of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes, alpha=alpha, bandwidth=bandwidth)
