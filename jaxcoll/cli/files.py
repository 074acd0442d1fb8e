"""Schedules and networks in files of every format; content and suffix tell the format."""

from __future__ import annotations

import os
from typing import Any

import click

from jaxcoll.cli.networks import is_name
from jaxcoll.cli.recognised import is_trace, needs_network

# Name -> suffixes. MSCCL XML is written for the runtime of microsoft/msccl, or for Azure's.
FORMATS = {
    "json": (".json",), "msccl": (".xml",), "azure": (), "mscclpp": (),
    "multitree": (".txt", ".tables"), "forestcoll": (), "sccl": (), "teccl": (),
    "graphml": (".graphml",), "gexf": (".gexf",), "nccl-conf": (".conf",), "ncclx": (),
    "csv": (".csv",),
}  # fmt: skip
# The content of each format, if it is not schedules alone.
_HOLDS = {
    "json": "networks, schedules, rules and times", "sccl": "networks and schedules",
    "graphml": "networks", "gexf": "networks",
    "nccl-conf": "rules of NCCL's tuner", "ncclx": "rules of NCCL's tuner", "csv": "measured times",
}  # fmt: skip


def read_schedule(path: str, network: Any = None) -> Any:
    """The schedule of a file, in memory; see ``open_schedule``."""
    import jaxcoll as jc

    found = open_schedule(path, network)
    return found if isinstance(found, jc.Schedule) else found.to_schedule()


def open_schedule(path: str, network: Any = None):
    """The schedule of a file: jaxcoll's JSON, MSCCL XML on ``network``, or a compact folder.

    Raises:
        click.UsageError: the file holds no schedule, or is XML and its network is not given.
        ValueError: see ``jc.io.load`` and ``jc.io.msccl.load``.
        OSError: the file cannot be read.
    """
    import jaxcoll as jc

    kind = needs_network(path)
    if kind:
        if network is None:
            raise click.UsageError(
                f"{path} is {kind}, which does not name the network; add --network, as in "
                "--network torus:4x4"
            )
        if os.path.isdir(path):
            return jc.io.open_compact(path, network)
        if is_trace(path):
            return jc.io.chakra.load(path.removesuffix(".0.et"), network)
        found = jc.io.load(path, network)
        # ForestColl's trees with one chunk each: the file does not say to split them further.
        return found.to_schedule(1) if isinstance(found, jc.trees.TreeFlow) else found
    refuse_network(path)
    found = jc.io.load(path)
    if not isinstance(found, jc.Schedule):
        raise click.UsageError(
            f"{path} holds a {type(found).__name__}, not a schedule; make one: jaxcoll synth"
        )
    check_network(path, found, network)
    return found


def refuse_network(path: str) -> None:
    """Refuse a name of a network, which other commands take, as the path of a schedule.

    Raises:
        click.UsageError: the path is a network's name and there is no such file.
    """
    if os.path.exists(path) or not is_name(path):
        return
    raise click.UsageError(
        f"{path} is a network, and a schedule's file is expected; make one: jaxcoll synth {path} "
        "-o schedule.json"
    )


def check_network(path: str, found: Any, network: Any) -> None:
    """Check that ``--network`` equals the network that a file states.

    Otherwise a proof on the file's network would be taken for a proof on the given one.

    Raises:
        click.UsageError: the networks differ.
    """
    import jaxcoll as jc

    own = getattr(found, "topology", found)
    if network is not None and not isinstance(own, jc.Topology):
        raise click.UsageError(
            f"{path} holds {kind_of(found)}s, which do not depend on a network; leave --network out"
        )
    if network is not None and not network.has_links_of(own):
        raise click.UsageError(
            f"{path} was made for {own.name or 'a network of its own'}, not for "
            f"{network.name}; leave --network out"
        )


def format_of(path: str, wanted: str | None) -> str:
    """The format to write: the given one, or that of the suffix.

    Raises:
        click.UsageError: neither tells the format.
    """
    if wanted is not None:
        return wanted
    if path == "-":
        return "json"
    suffix = os.path.splitext(path)[1].lower()
    found = [name for name, suffixes in FORMATS.items() if suffix in suffixes]
    if not found:
        raise click.UsageError(
            f"the suffix of {path!r} names no format; end it with .json, .xml (MSCCL) or "
            ".txt (MultiTree), or add --format"
        )
    return found[0]


def check_target(
    path: str | None, wanted: str | None = None, *, as_json: bool = False, suffix: str = ""
) -> str | None:
    """The format of an output file; one that could not be written is refused before any work.

    Args:
        path: the path of the file; ``-`` is stdout, None means no output.
        wanted: the format, instead of the suffix.
        as_json: whether stdout is to hold one JSON document.
        suffix: the only suffix that the command writes, and only to files.

    Raises:
        click.UsageError: there is no such folder or format, or stdout would hold more than JSON.
    """
    if path is None:
        return None
    if suffix and os.path.splitext(path)[1].lower() != suffix:
        raise click.UsageError(f"expected a file that ends with {suffix}, got {path!r}")
    # Checked first, so that no search of minutes ends with this error.
    folder = os.path.dirname(os.path.abspath(path))
    if path != "-" and not os.path.isdir(folder):
        above = folder
        while not os.path.lexists(above):
            above = os.path.dirname(above)
        if not os.path.isdir(above):
            raise click.UsageError(f"{above} is a file, not a folder; give a path in a folder")
        raise click.UsageError(f"there is no folder {folder}; type: mkdir -p {folder}")
    if path != "-" and os.path.isdir(path):
        raise click.UsageError(f"{path} is a folder; give the path of a file")
    form = suffix or format_of(path, wanted)
    if path == "-" and as_json and form != "json":
        raise click.UsageError(
            f"with --json only JSON goes to stdout; leave it out, or write {form} to a file"
        )
    return form


def write(path: str, obj: Any, form: str, nbytes: int | None = None) -> None:
    """Write an object, whole or not at all; ``-`` is stdout.

    Args:
        nbytes: bytes of a rank's buffer; TE-CCL's files state the time for that size.

    Raises:
        ValueError: the format cannot hold it.
        OSError: the file cannot be written.
    """
    import jaxcoll as jc
    from jaxcoll.io.files import write_text
    from jaxcoll.io.sends import MSCCL_WORDS

    _check_held(obj, form)
    try:
        # The registry of a plan is a file beside it.
        if form == "mscclpp" and path != "-":
            return jc.io.mscclpp.save(path, obj)
        text = _text(obj, form, nbytes)
    except jc.errors.FormatError as error:
        # Other collectives cannot become a program of a runtime at all.
        if form not in ("msccl", "azure", "mscclpp") or obj.collective.kind not in MSCCL_WORDS:
            raise
        raise click.UsageError(
            f"{error}; make one that fits: jaxcoll synth --for-runtime msccl"
        ) from error
    if path == "-":
        click.echo(text, nl=False)
    else:
        write_text(path, text)


def _check_held(obj: Any, form: str) -> None:
    """Check that a format holds an object of this kind."""
    import jaxcoll as jc

    # Checked before the writers, whose errors would name the library's arguments.
    kinds = {"networks": jc.Topology, "measured times": jc.io.timings.Timings}
    what = _HOLDS.get(form, "schedules")
    held = {
        "networks, schedules, rules and times": kind_of(obj) != "table",
        "networks and schedules": isinstance(obj, (jc.Topology, jc.Schedule)),
        "rules of NCCL's tuner": kind_of(obj) == "rule",
        "schedules": isinstance(obj, jc.Schedule),
    }.get(what, isinstance(obj, kinds.get(what, ())))
    if not held:
        raise click.UsageError(
            f"the format {form} holds {what}, not {kind_of(obj)}s; type --format json, or "
            "another one"
        )


def kind_of(obj: Any) -> str:
    """The name of an object in messages."""
    from jaxcoll.io.nccl.conf import NcclRule

    names = {
        "Topology": "network", "Timings": "time", "TreeFlow": "tree",
        "OrbitSchedule": "schedule by orbits",
    }  # fmt: skip
    name = type(obj).__name__
    if isinstance(obj, tuple):
        # A tuple without rules holds MultiTree's tables, one for each rank.
        return "rule" if obj and all(isinstance(each, NcclRule) for each in obj) else "table"
    return names.get(name, name.lower())


def _text(obj: Any, form: str, nbytes: int | None) -> str:
    from jaxcoll import io
    from jaxcoll.io.nccl import conf, ncclx

    if form in ("msccl", "azure"):
        return io.msccl.dumps(obj, dialect=form)
    if form == "json" and isinstance(obj, tuple):
        return ncclx.dumps_json(obj)
    if form == "json" and isinstance(obj, io.timings.Timings):
        return io.timings.dumps_json(obj.rows)
    if form in ("graphml", "gexf"):
        return io.graph_files.dumps(obj, form)
    if form == "teccl":
        return io.teccl.dumps(obj, 2**20 if nbytes is None else nbytes)
    if form == "csv":
        return io.timings.dumps(obj.rows)
    writers: dict[str, Any] = {
        "json": io.dumps, "mscclpp": io.mscclpp.dumps, "multitree": io.multitree.dumps,
        "forestcoll": io.forestcoll.dumps, "sccl": io.sccl.dumps, "nccl-conf": conf.dumps,
        "ncclx": ncclx.dumps_csv,
    }  # fmt: skip
    return writers[form](obj)
