"""``doctor``: installed versions, the devices, and the links assumed between them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from typing import Any

import click

from jaxcoll.cli.exploring import network_facts
from jaxcoll.cli.networks import NetworkName, named_network
from jaxcoll.cli.quantities import bandwidth_text, one_line, tell, time_text
from jaxcoll.cli.schedules import as_json
from jaxcoll.progress import working

_NEEDED = ("jax", "jaxlib", "numpy", "scipy", "numba", "highspy", "click")
# Package -> its purpose, and the command that installs it.
_OPTIONAL = {
    "matplotlib": ("drawings", "pip install matplotlib"),
    "networkx": ("jc.Topology.from_networkx", "pip install networkx"),
    "optax": ("jc.optax", "pip install optax"),
    "libtpu": ("compiling for TPU slices", "pip install 'jax[tpu]'"),
}


@click.command()
@click.option("--network", type=NetworkName(), help="Also: the device of each rank of this one.")
@as_json
def doctor(network, as_json) -> int:
    """Devices, their guessed network, the order of ranks, versions, missing packages.

    The exit code is 1 if a package is missing that the library needs.

    \b
    jaxcoll doctor
    jaxcoll doctor --network torus:2x4
    """
    from jaxcoll.numerics import machine_code

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "jaxcoll": _version("jaxcoll"),
        "packages": {name: _version(name) for name in _NEEDED},
        "optional": {name: _version(name) for name in _OPTIONAL},
        "machine_code": machine_code.library() is not None,
        "links": _links(),
        "transport": _transport(),
        "devices": None,
    }
    if _can_import("jax"):
        with working("looking for devices"):
            found["devices"] = _devices(network)
    missing = [name for name, version in found["packages"].items() if version is None]
    lines = [*_version_lines(found), *_device_lines(found["devices"])]
    tell(as_json, {**found, "missing": missing}, *lines)
    return int(bool(missing))


def _links() -> str | None:
    """The file of the player for the lowering "links", and whether it plays on GPUs; or None."""
    if not all(map(_can_import, _NEEDED)):
        return None
    from jaxcoll.execute.links import engine

    found = engine.compiled()
    if isinstance(found, str):
        return None
    return f"{found.name}{', also on GPUs' if b'jaxcoll_gpu_play' in found.read_bytes() else ''}"


def _transport() -> str | None:
    """What carries links between processes on CPUs, and why; None without the player."""
    if not all(map(_can_import, _NEEDED)):
        return None
    from jaxcoll.errors import CollectiveError
    from jaxcoll.execute.links import engine

    if isinstance(engine.compiled(), str):
        return None
    try:
        return str(engine.described())
    except CollectiveError as error:
        return str(error)


def _version(name: str) -> str | None:
    if name != "jaxcoll" and not _can_import(name):
        return None
    try:
        # A package may be present without its metadata, as in a zip.
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _can_import(name: str) -> bool:
    try:
        # The package is not imported: JAX alone takes a second, and may fail because of a driver.
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _devices(network: str | None) -> dict[str, Any]:
    """The devices of JAX, and the network that the library assumes between them."""
    import warnings

    try:
        import jax

        import jaxcoll as jc

        devices = jax.devices()
        # Warnings about assumptions on these devices are part of the answer here.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            guessed = jc.Topology.from_devices(devices)
    except Exception as error:  # a driver may fail in any way, which doctor has to report
        return {"error": f"{type(error).__name__}: {one_line(error)}"}
    facts: dict[str, Any] = {
        "count": len(devices),
        "kind": str(devices[0].device_kind),
        "platform": devices[0].platform,
        "processes": jax.process_count(),
        "network": network_facts(guessed),
        "assumptions": [one_line(each.message) for each in caught],
        "coordinates": [getattr(device, "coords", None) for device in devices][:64],
    }
    if network is not None:
        wanted = named_network(network)
        # ``jc.reorder`` needs one device per rank.
        if wanted.num_ranks != len(devices):
            raise click.UsageError(
                f"{network} has {wanted.num_ranks} ranks, but JAX finds {len(devices)} devices; "
                f"name a network of {len(devices)}, or leave --network out"
            )
        # The order that places neighbouring ranks on neighbouring devices.
        order = jc.reorder(devices, wanted)
        facts["rank_order"] = [int(device.id) for device in order]
    return facts


def _version_lines(found: dict[str, Any]) -> list[str]:
    lines = [f"Python {found['python']} ({sys.executable})", f"jaxcoll {found['jaxcoll']}"]
    for name, version in found["packages"].items():
        lines.append(f"{name} {version or f'is missing; type: pip install {name}'}")
    for name, version in found["optional"].items():
        purpose, install = _OPTIONAL[name]
        lines.append(f"{name} {version or f'is not installed ({purpose}); type: {install}'}")
    if found["machine_code"]:
        lines.append("kernels: machine code, built when jaxcoll was installed")
    else:
        lines.append("kernels: no machine code; install with a C compiler for faster first answers")
    if found["links"]:
        lines.append(f"links between processes: {found['links']}, as lowering='links'")
        lines.append(f"    on CPUs: {found['transport']}")
        if "GPU" not in found["links"]:
            lines.append(
                "    for GPUs too, with jaxlib 0.11 or newer: python -m jaxcoll.execute.links"
            )
    else:
        lines.append(
            "links between processes: no player; install with a C++ compiler, or type: "
            "python -m jaxcoll.execute.links"
        )
    return lines


def _device_lines(devices: dict[str, Any] | None) -> list[str]:
    if devices is None:
        return ["no devices, as there is no JAX: schedules are made, proved and timed without it"]
    if "error" in devices:
        return [f"JAX found no devices: {devices['error']}"]
    network = devices["network"]
    counted = "devices" if devices["count"] > 1 else "device"
    processes = "processes" if devices["processes"] > 1 else "process"
    lines = [
        f"{devices['count']} {counted}, {devices['kind']} ({devices['platform']}), "
        f"{devices['processes']} {processes}",
        f"guessed network: {network['name']}, {network['ranks']} ranks, "
        f"{network['switches']} switches, {network['links']} links",
    ]
    lines += [
        f"  {each['links']} links of {time_text(each['alpha_seconds'])} and "
        f"{bandwidth_text(each['bytes_per_second'])}"
        for each in network["speeds"]
    ]
    lines += [f"  {assumption}" for assumption in devices["assumptions"]]
    if "rank_order" in devices:
        lines.append(f"device of each rank: {', '.join(map(str, devices['rank_order']))}")
    return lines


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@as_json
def completion(shell, as_json) -> int:
    """Print the script for completion in a shell.

    \b
    bash:  jaxcoll completion bash >> ~/.bashrc
    zsh:   jaxcoll completion zsh >> ~/.zshrc
    fish:  jaxcoll completion fish > ~/.config/fish/completions/jaxcoll.fish
    """
    from click.shell_completion import get_completion_class

    from jaxcoll.cli import application

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}; type bash, zsh or fish")
    script = found(application, {}, "jaxcoll", "_JAXCOLL_COMPLETE").source()
    return tell(as_json, {"shell": shell, "script": script}, script)
