"""The network between JAX devices, as columns of links.

Which devices have links follows from their coordinates on TPUs, from the numbers of their hosts
elsewhere; how fast these are, from the table of ``device_kinds``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from jaxcoll.device_kinds import UNKNOWN_KIND, DeviceKind, backend_of, kind_of
from jaxcoll.errors import AssumptionWarning, TopologyError, warn_user
from jaxcoll.grid import Grid, Placement
from jaxcoll.links.capable_switches import InNetwork
from jaxcoll.numerics import checks


def describe_devices(
    devices: Sequence,
    *,
    alpha: float | None = None,
    bandwidth: float | None = None,
    wrap: Sequence[bool] | None = None,
    within: Sequence | None = None,
) -> dict:
    """The arguments of ``Topology`` for a list of devices; see ``Topology.from_devices``."""
    devices = list(checks.members(devices, "devices", TopologyError))
    if not devices:
        raise TopologyError("a network needs at least one device, got none")
    for device in devices:
        if not hasattr(device, "device_kind"):
            raise TopologyError(
                f"a device has a device_kind, as those of jax.devices() do; got "
                f"{checks.shown(device)}"
            )
    kinds = {str(device.device_kind) for device in devices}
    if len(kinds) > 1:
        raise TopologyError(f"devices must be of one kind, got {sorted(kinds)}")
    kind = kind_of(devices[0])
    if kind is UNKNOWN_KIND and len(devices) > 1 and None in (alpha, bandwidth):
        warn_user(
            f"the links of a {devices[0].device_kind!r} are not known: {kind.alpha * 1e6:g} us and "
            f"{kind.bandwidth / 1e9:g} GB/s per link and direction are assumed; state them by "
            "alpha= (seconds) and bandwidth= (bytes per second)",
            AssumptionWarning,
        )
    given = {
        name: check(value, name, TopologyError)
        for name, value, check in (
            ("alpha", alpha, checks.nonnegative),
            ("bandwidth", bandwidth, checks.positive),
        )
        if value is not None
    }
    kind = dataclasses.replace(kind, **given)
    # GPUs that a compiler describes have coordinates too, which number them in their host.
    is_gpu = backend_of(getattr(devices[0], "platform", "")) == "gpu"
    if not is_gpu and any(getattr(device, "coords", None) is not None for device in devices):
        if within is None:  # all devices of the slice that are known
            client = getattr(devices[0], "client", None)
            known = [] if client is None else list(client.devices())
            within = known if all(device in known for device in devices) else devices
        return _tpu_slice(devices, kind, wrap, within)
    return _hosts(devices, kind)


def _tpu_slice(devices: list, kind: DeviceKind, wrap: Sequence[bool] | None, whole) -> dict:
    # Two cores of one chip share its links; cores form one more dimension of the box.
    cored = any(getattr(device, "core_on_chip", 0) for device in (*devices, *whole))
    coords, everywhere = _coordinates(devices, cored), _coordinates(list(whole), cored)
    is_inside = set(map(tuple, coords)) <= set(map(tuple, everywhere))
    if coords.shape[1] != everywhere.shape[1] or not is_inside:
        raise TopologyError("the devices given as the slice (within=) do not hold all devices")
    # Rings close at the ends of the slice, so the sides of the slice decide, not the subgrid's.
    sides = np.ptp(everywhere, axis=0) + 1
    if wrap is None:
        wrap = [kind.wraps_at > 0 and int(side) % kind.wraps_at == 0 for side in sides]
    if len(wrap) < len(sides):
        wrap = [*wrap, *[False] * (len(sides) - len(wrap))]
    slice_ = Grid(tuple(int(side) for side in sides), tuple(wrap))
    coords = coords - everywhere.min(axis=0)
    for d, (side, closed) in enumerate(zip(slice_.shape, slice_.wrap, strict=True)):
        coords[:, d] = _from_zero(coords[:, d], side, closed)
    shape = tuple(int(side) for side in coords.max(axis=0) + 1)
    if math.prod(shape) != len(devices) or len(np.unique(coords, axis=0)) != len(devices):
        raise TopologyError(
            f"the coordinates of {len(devices)} devices do not fill a grid: they span {shape}; "
            f"pass all devices of a slice or of a grid inside it"
        )
    # A dimension that the box spans only in part lacks the link that would close it.
    closes = [
        closed and side == whole_side
        for closed, side, whole_side in zip(slice_.wrap, shape, slice_.shape, strict=True)
    ]
    grid = Grid(shape, tuple(closes))
    position = np.ravel_multi_index(tuple(coords.T), shape)
    rank_at = np.argsort(position)  # box position -> rank
    pairs = rank_at[np.concatenate([grid.neighbour_pairs(d) for d in range(len(shape))])]
    return _columns(
        len(devices),
        pairs,
        np.full(len(pairs), kind.alpha),
        np.full(len(pairs), kind.bandwidth),
        name=f"{getattr(devices[0], 'device_kind', 'device')} {'x'.join(map(str, shape))}",
        placement=Placement(grid, tuple(rank_at)),
    )


def _coordinates(devices: list, cored: bool) -> np.ndarray:
    """Coordinates, int64 of shape (devices, dimensions), with the core last if ``cored``."""
    places = [getattr(device, "coords", None) for device in devices]
    dimensions = {None if place is None else len(place) for place in places}
    if len(dimensions) > 1:
        raise TopologyError(
            "either all devices or none must have coordinates, of the same number of "
            f"dimensions; got {places[:8]}"
        )
    coords = np.asarray(places, dtype=np.int64)
    cores = np.asarray([int(getattr(device, "core_on_chip", 0)) for device in devices])
    return np.concatenate([coords, cores[:, None]], axis=1) if cored else coords


def _from_zero(coordinate: np.ndarray, side: int, closed: bool) -> np.ndarray:
    """One coordinate of a subgrid of a slice, relative to the subgrid's first coordinate."""
    # On a closed dimension a subgrid may wrap around: its first coordinate follows the longest gap.
    used = np.unique(coordinate)
    if not closed or len(used) == side:
        return coordinate - used[0]
    gaps = np.diff(np.append(used, used[0] + side))
    start = used[(int(gaps.argmax()) + 1) % len(used)]
    return (coordinate - start) % side


def _hosts(devices: list, kind: DeviceKind) -> dict:
    """Hosts wired as the kind of device demands, and one switch between them for all devices."""
    # A host has a switch of its own, or a link between every two of its devices. Where the switch
    # of a kind spans hosts, "host" means all the hosts that it joins.
    n = len(devices)
    place = "slice_index" if kind.spans_hosts else "process_index"
    hosts = [int(getattr(device, place, 0) or 0) for device in devices]
    number = {host: i for i, host in enumerate(sorted(set(hosts)))}
    if n == 1:
        return _columns(1, np.zeros((0, 2), np.int64), np.zeros(0), np.zeros(0), name="one device")
    links, switches, able = [], n, []
    for host in number:
        ranks = [rank for rank in range(n) if hosts[rank] == host]
        if kind.wiring == "mesh":
            links += [(*pair, kind.alpha, kind.bandwidth) for pair in combinations(ranks, 2)]
            continue
        if len(ranks) > 1:
            links += [(rank, switches, kind.alpha, kind.bandwidth) for rank in ranks]
            able += [switches] * kind.nvls
        switches += 1
    if len(number) > 1:
        links += [(rank, switches, kind.network_alpha, kind.network_bandwidth) for rank in range(n)]
        switches += 1
    up = np.asarray([link[:2] for link in links], np.int64)
    speed = np.asarray([link[2:] for link in links])
    return _columns(
        n,
        np.concatenate([up, up[:, ::-1]]),
        np.tile(speed[:, 0], 2),
        np.tile(speed[:, 1], 2),
        num_vertices=switches,
        name=f"{len(number)} host{'s' if len(number) > 1 else ''} x "
        f"{n // len(number)} {getattr(devices[0], 'device_kind', 'device')}",
        in_network=InNetwork(able, able),  # type: ignore[arg-type]
    )


def _columns(num_ranks: int, pairs: np.ndarray, alpha, bandwidth, **described) -> dict:
    return {
        "num_ranks": num_ranks,
        "src": pairs[:, 0],
        "dst": pairs[:, 1],
        "alpha": alpha,
        "bandwidth": bandwidth,
        **described,
    }
