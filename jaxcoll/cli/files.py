"""Schedules and networks in files of every format, told apart by their content and suffix."""

from __future__ import annotations

import os
from typing import Any

import click

# By name: suffixes. MSCCL XML is written for the runtime of microsoft/msccl, or for Azure's.
FORMATS = {
    "json": (".json",), "msccl": (".xml",), "azure": (), "mscclpp": (),
    "multitree": (".txt", ".tables"),
}  # fmt: skip


def read_schedule(path: str, network: Any = None):
    """The schedule of a file, in memory; see ``open_schedule``."""
    import jaxcoll as jc

    found = open_schedule(path, network)
    return found if isinstance(found, jc.Schedule) else found.to_schedule()


def open_schedule(path: str, network: Any = None):
    """The schedule of a file: jaxcoll's JSON, MSCCL XML on ``network``, or a compact folder.

    Raises:
        click.UsageError: no schedule, or XML without its network.
        ValueError: see ``jc.io.load`` and ``jc.io.msccl.load``.
        OSError: the file cannot be read.
    """
    import jaxcoll as jc

    if os.path.isdir(path) or is_xml(path) or is_plan(path) or is_trace(path):
        kind, load = ("MSCCL XML", jc.io.msccl.load)
        if is_plan(path):
            kind, load = ("an MSCCL++ plan", jc.io.mscclpp.load)
        if is_trace(path):
            kind, load = ("a trace of Chakra's", jc.io.chakra.load)
            path = path.removesuffix(".0.et")
        if os.path.isdir(path):
            kind, load = ("a folder, read as a schedule on disk", jc.io.open_compact)
        if network is None:
            raise click.UsageError(
                f"{path} is {kind}, which does not name the network; add --network, as in "
                "--network torus:4x4"
            )
        return load(path, network)
    found = jc.io.load(path)
    if not isinstance(found, jc.Schedule):
        raise click.UsageError(
            f"{path} holds a {type(found).__name__}, not a schedule; make one: jaxcoll synth"
        )
    check_network(path, found, network)
    return found


def check_network(path: str, found: Any, network: Any) -> None:
    """That ``--network`` is what a file with a network of its own has.

    A proof on that network would be taken for one on the network that was asked for.

    Raises:
        click.UsageError: it is another.
    """
    own = getattr(found, "topology", found)
    if network is not None and network != own:
        raise click.UsageError(
            f"{path} is of {own.name or 'a network of its own'}, not of {network.name}; leave "
            "--network out"
        )


def is_plan(path: str) -> bool:
    """Whether a file begins as a plan of MSCCL++ does, and not as JSON of this library."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        start = file.read(4096)
    return start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") and (
        b'"gpus"' in start and b'"format"' not in start
    )


def is_trace(path: str) -> bool:
    """Whether a file is the first of Chakra's traces, ``PREFIX.0.et``."""
    return path.endswith(".0.et") and os.path.isfile(path)


def is_xml(path: str) -> bool:
    """Whether a file begins as XML does. Pipes and devices are left to who reads them."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(256).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")


def format_of(path: str, wanted: str | None) -> str:
    """The format to write: the one that is wanted, or by the suffix.

    Raises:
        click.UsageError: neither says it.
    """
    if wanted is not None:
        return wanted
    if path == "-":
        return "json"
    suffix = os.path.splitext(path)[1].lower()
    found = [name for name, suffixes in FORMATS.items() if suffix in suffixes]
    if not found:
        raise click.UsageError(
            f"the suffix of {path!r} says no format; end it with .json, .xml (MSCCL) or .txt "
            "(MultiTree), or add --format"
        )
    return found[0]


def check_target(
    path: str | None, wanted: str | None = None, *, as_json: bool = False, suffix: str = ""
) -> str | None:
    """The format of an output file, refused before any work where it could not be written.

    Args:
        path: of the file; ``-`` is stdout, None nothing.
        wanted: the format, instead of the suffix.
        as_json: whether stdout is to hold one JSON document.
        suffix: the only one that is written, and to files alone.

    Raises:
        click.UsageError: no such folder, no format, or something else than JSON on stdout.
    """
    if path is None:
        return None
    if suffix and os.path.splitext(path)[1].lower() != suffix:
        raise click.UsageError(f"{path!r} is to be a file that ends with {suffix}")
    folder = os.path.dirname(os.path.abspath(path))
    if path != "-" and not os.path.isdir(folder):
        raise click.UsageError(f"there is no folder {folder}; type: mkdir -p {folder}")
    if path != "-" and os.path.isdir(path):
        raise click.UsageError(f"{path} is a folder; give the path of a file")
    form = suffix or format_of(path, wanted)
    if path == "-" and as_json and form != "json":
        raise click.UsageError(
            f"with --json there is nothing but JSON on stdout; leave it out, or write {form} to a "
            "file"
        )
    return form


def write(path: str, obj: Any, form: str) -> None:
    """Write an object, whole or not at all; ``-`` is stdout.

    Raises:
        ValueError: the format cannot hold it.
        OSError: the file cannot be written.
    """
    import jaxcoll as jc

    modules = {"json": jc.io, "multitree": jc.io.multitree, "mscclpp": jc.io.mscclpp}
    module: Any = modules.get(form, jc.io.msccl)
    options = {} if form in modules else {"dialect": form}
    if form != "json" and not isinstance(obj, jc.Schedule):
        raise click.UsageError(f"{form} holds schedules, not networks; type --format json")
    try:
        if path == "-":
            click.echo(module.dumps(obj, **options), nl=False)
        else:
            module.save(path, obj, **options)
    except jc.FormatError as error:
        if form == "json":
            raise
        raise click.UsageError(
            f"{error}; make one that fits: jaxcoll synth --for-runtime msccl"
        ) from error
