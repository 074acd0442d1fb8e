"""Ahead-of-time compilation for TPU slices and GPU clusters, on a machine without them.

    v5p = aot.target("v5p:4x4x4")
    compiled = aot.compile_for(v5p, f, (shape,), in_specs=P("i"), out_specs=P("i"))
    aot.summarize(compiled).in_flight

This shows that a program compiles, which messages are in flight together, and how much memory it
takes. It times nothing, and nothing runs on these devices. Here are the targets; ``hlo`` (the text
of a compiled program) and ``summary`` read what was compiled.

The compilers must be installed, in the versions that ``requirements`` names for the installed JAX.
The process must start with ``ENVIRONMENT`` in its environment (for GPUs ``JAX_PLATFORMS`` is
enough).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata, resources
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies as jax_topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcoll.aot.hlo import Instruction, Module, parse
from jaxcoll.aot.summary import Burst, Summary, summarize, summarize_module
from jaxcoll.errors import CollectiveError, TopologyError, shown
from jaxcoll.numerics import checks
from jaxcoll.topology import Topology

__all__ = [
    "ENVIRONMENT",
    "GPUS",
    "TPUS",
    "Burst",
    "Instruction",
    "Module",
    "Summary",
    "Target",
    "compile_for",
    "is_available",
    "parse",
    "requirements",
    "summarize",
    "summarize_module",
    "target",
]

# Run on the CPU, ask no metadata server for a TPU, let several processes load the compiler.
ENVIRONMENT = MappingProxyType(
    {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
)

TPUS = ("v4", "v5e", "v5p", "v6e")
GPUS = ("h100",)
_SIDE = re.compile(r"[0-9]{1,6}")  # int() has an error of its own for thousands of digits
_MODULES = {"tpu": "libtpu", "gpu": "jax_cuda12_plugin"}


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices to compile for.

    Attributes:
        name: as given to ``target``.
        platform: "tpu" or "gpu".
        sides: chips along each dimension of a slice, or (hosts, GPUs of a host).
        devices: in the order of their coordinates, the last dimension fastest.
        wrap: which dimensions of a slice close into rings; ``None`` for the generation's rule.
    """

    name: str
    platform: str
    sides: tuple[int, ...]
    devices: tuple[Any, ...]
    wrap: tuple[bool, ...] | None = None

    def mesh(self, *axis_names: str) -> Mesh:
        """A mesh with one axis for all devices ("i" when none is named), or one per dimension.

        Raises:
            TopologyError: neither one name nor one per dimension.
        """
        names = axis_names or ("i",)
        sides = self.sides if len(names) == len(self.sides) else (len(self.devices),)
        if len(names) != len(sides):
            raise TopologyError(
                f"a mesh of {self.name} has 1 or {len(self.sides)} axes, got {names}"
            )
        return Mesh(np.asarray(self.devices, object).reshape(sides), names)

    @functools.cached_property
    def topology(self) -> Topology:
        """The network of the devices, rank r being ``devices[r]``."""
        return Topology.from_devices(self.devices, wrap=self.wrap)


def target(name: str, *, wrap: bool | None = None) -> Target:
    """The devices of a target.

    Args:
        name: "v5p:4x4x4", "v4:2x2x2", "v5e:4x4" or "v6e:4x4" (chips along each dimension), or
            "h100:16x8" (hosts and GPUs of a host; "h100:8" is one host).
        wrap: whether the dimensions of a TPU slice close into rings, instead of the generation's
            rule.

    Raises:
        TopologyError: an unknown name, or a compiler that is not installed.
    """
    generation, _, shape = checks.text(name, "a target", TopologyError).partition(":")
    checks.optional(wrap, checks.flag, "wrap", TopologyError)
    parts = shape.split("x")
    sides = tuple(map(int, parts)) if all(map(_SIDE.fullmatch, parts)) else ()
    if not sides or 0 in sides or generation not in TPUS + GPUS:
        known = ", ".join(f"{generation}:SIDES" for generation in TPUS)
        raise TopologyError(f"unknown target {checks.shown(name)}; known: {known}, h100:HOSTSxGPUS")
    return _gpus(name, sides) if generation in GPUS else _slice(name, sides, wrap)


def is_available(platform: str) -> bool:
    """Whether the compiler for "tpu" or "gpu" is installed.

    Raises:
        TopologyError: another platform.
    """
    checks.choice(platform, _MODULES, "platform", TopologyError)
    return importlib.util.find_spec(_MODULES[platform]) is not None


def requirements(*platforms: str) -> list[str]:
    """Arguments of ``pip install --no-deps`` that install the compilers for the installed JAX.

    Args:
        platforms: "tpu", "gpu"; both if none is given.

    Raises:
        TopologyError: another platform.
    """
    found = []
    for platform in platforms or ("tpu", "gpu"):
        checks.choice(platform, ("tpu", "gpu"), "a platform", TopologyError)
        # JAX names the libtpu that it was built with among its own requirements, under the extra
        # "tpu". The CUDA plugins come with jaxlib, and ptxas, which ends every compilation for a
        # GPU, with NVIDIA's compiler.
        if platform == "tpu":
            asked = metadata.requires("jax") or []
            found += [line.partition(";")[0].strip() for line in asked if "libtpu" in line]
        else:
            version = metadata.version("jaxlib")
            found += [f"{name}=={version}" for name in ("jax-cuda12-plugin", "jax-cuda12-pjrt")]
            found.append("nvidia-cuda-nvcc-cu12")
    return found


def _slice(name: str, sides: tuple[int, ...], wrap: bool | None) -> Target:
    _check_ready("tpu", name)
    options = {}
    closed = None if wrap is None else (wrap,) * len(sides)
    if closed is not None:
        options["wrap"] = (*closed, *(False,) * (3 - len(sides)))  # three, whatever the slice has
    if name.startswith("v4"):
        # One device a chip, as programs on the chips see it, instead of one a core.
        options["chip_config_name"] = "megacore"
    described = jax_topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    # By coordinates, so that neighbours in a mesh of the sides are neighbours in the slice.
    devices = sorted(described.devices, key=lambda d: (tuple(d.coords), d.core_on_chip))
    if len(devices) != math.prod(sides):
        raise TopologyError(f"{name} has {len(devices)} devices, expected {math.prod(sides)}")
    return Target(name, "tpu", sides, tuple(devices), closed)


def _gpus(name: str, sides: tuple[int, ...]) -> Target:
    if len(sides) > 2:
        raise TopologyError(f"a GPU cluster is named h100:HOSTSxGPUS, got {shown(name)}")
    _check_ready("gpu", name)
    hosts, each = (1, *sides)[-2:]
    # Plugins that describe topologies are registered when JAX first looks for devices.
    jax.devices()
    # The description of an H100 that a driver would give; with it XLA asks for no driver.
    config = resources.files("jaxcoll.aot").joinpath("h100.txtpb").read_text()
    described = jax_topologies.get_topology_desc(
        "h100", "cuda", topology=f"1x{hosts}x{each}", target_config=config
    )
    return Target(name, "gpu", (hosts, each), tuple(described.devices))


def _check_ready(platform: str, name: str) -> None:
    if not is_available(platform):
        raise TopologyError(
            f"the compiler for {name} is not installed; for jax {jax.__version__}: pip install "
            f"{'--no-deps ' if platform == 'gpu' else ''}{' '.join(requirements(platform))}"
        )
    # The variables are read when JAX and libtpu are loaded, so that they cannot be set here.
    platforms = jax.config.jax_platforms
    if platform == "gpu" and platforms != "cpu":
        raise TopologyError(
            f"to compile for {name}, start Python with JAX_PLATFORMS=cpu; it is {platforms!r}, by "
            "which JAX looks for GPUs of this machine"
        )
    missing = [f"{key}={value}" for key, value in ENVIRONMENT.items() if key not in os.environ]
    if platform == "tpu" and missing:
        raise TopologyError(
            f"to compile for {name}, start Python with {' '.join(missing)}: the compiler otherwise "
            "looks for the TPU itself"
        )


def compile_for(
    mesh: Mesh,
    function: Callable,
    arguments: Sequence[Any],
    in_specs: Any,
    out_specs: Any,
    *,
    options: Mapping[str, str | bool] | None = None,
    check_vma: bool = True,
) -> jax.stages.Compiled:
    """``jit`` of ``shard_map`` of a function, compiled for a mesh without any data.

    Args:
        mesh: such as that of a ``Target``.
        function: a function of what ``arguments`` stand for.
        arguments: as ``jax.jit(...).lower`` takes them: pytrees of ``jax.ShapeDtypeStruct``, or of
            anything else with a shape and a dtype, of the whole arrays over all devices.
        in_specs, out_specs: as ``jax.shard_map`` takes them: one of ``in_specs`` for each argument,
            or for parts of it.
        options: XLA's, as ``compiler_options`` gives them.
        check_vma: as ``jax.shard_map`` takes it.

    Raises:
        CollectiveError: an argument without shape or dtype, or ``in_specs`` of another structure.
    """
    checks.instance(mesh, Mesh, "mesh", CollectiveError)
    checks.function(function, "what is compiled", CollectiveError)
    arguments = checks.members(arguments, "arguments", CollectiveError)
    checks.optional(options, checks.instance, Mapping, "options", CollectiveError)
    checks.flag(check_vma, "check_vma", CollectiveError)
    specs = tuple(in_specs) if isinstance(in_specs, list) else in_specs
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=check_vma
    )
    # Types with shardings in place of arrays: nothing is put on devices that do not exist.
    try:
        placed = jax.tree.map(
            lambda spec, part: jax.tree.map(lambda leaf: _placed(leaf, spec, mesh), part),
            specs,
            tuple(arguments),
            is_leaf=lambda spec: isinstance(spec, PartitionSpec),
        )
    except CollectiveError:  # of a leaf; it is a ValueError, too, and says more than the next one
        raise
    except ValueError as error:
        raise CollectiveError(
            f"in_specs={checks.shown(in_specs)} does not match the arguments; it has one "
            f"PartitionSpec for each of them, or a tree of the structure that they begin with "
            f"({error})"
        ) from error
    lowered = jax.jit(mapped).lower(*placed)
    return lowered.compile(compiler_options=dict(options) if options else None)


def _placed(leaf, spec: PartitionSpec, mesh: Mesh) -> jax.ShapeDtypeStruct:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise CollectiveError(
            f"compile_for takes pytrees of jax.ShapeDtypeStruct(shape, dtype), got "
            f"{checks.shown(leaf)} in one"
        )
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))
