"""Networks by name: "torus:4x4", "dgx-h100:4", "v5p:4x4x8", a product of others, or a file.

A name is a family of ``jc.topologies`` with hyphens, followed by a colon and its numbers with x
between them. TPU slices are wired by the library's table of devices, without the TPU compiler.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from jaxcoll.cli.descriptions import NAMED, OPTIONS, described_network, description_of
from jaxcoll.cli.failing import after_failures, failure_options
from jaxcoll.cli.quantities import BANDWIDTH_LIST, TIMES
from jaxcoll.cli.recognised import needs_network
from jaxcoll.errors import shown
from jaxcoll.progress import working

# The most ranks for families with a link between every two ranks, and for all others: more would
# take more memory than most machines have.
_MOST_JOINED, _MOST_RANKS = 2**11, 2**16
_SIDES = re.compile(r"[0-9]{1,6}(x[0-9]{1,6})*")

Speeds = tuple[Sequence[float], Sequence[float]]  # alphas in seconds, bandwidths in B/s


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of networks with a short form.

    Attributes:
        function: the name of its function in ``jc.topologies`` or ``jc.topologies.generative``.
        numbers: names of its numbers; the last one may be repeated if it ends with "...".
        links: "same" for one latency and bandwidth, "levels" for one value or as many as there are
            kinds of links, "hosts" for links inside hosts and between them, "digraph" for
            direct-connect families.
        ranks: returns a lower bound on the number of ranks.
        joined: whether the number of links grows with the square of the ranks.
    """

    function: str
    numbers: str
    links: str = "levels"
    ranks: Callable[..., int] = lambda *numbers: math.prod(numbers)
    joined: bool = False


FAMILIES: dict[str, Family] = {
    "ring": Family("ring", "RANKS", "same"),
    "mesh": Family("mesh", "SIDE..."),
    "torus": Family("torus", "SIDE..."),
    "hypercube": Family("hypercube", "DIMENSIONS", ranks=lambda d: 2 ** min(d, 40)),
    "star": Family("star", "RANKS", "same"),
    "fully-connected": Family("fully_connected", "RANKS", "same", joined=True),
    "switch": Family("switch", "RANKS", "same"),
    "switch-2d": Family("switch_2d", "INNERxOUTER"),
    "multi-rail": Family("multi_rail", "HOSTSxRANKS"),
    "ring-fc-switch": Family("ring_fc_switch", "RINGxFCxSWITCH"),
    "dgx1": Family("dgx1", "", "same", ranks=lambda: 8),
    "dgx2": Family("dgx2", "", "same", ranks=lambda: 16),
    "dgx-a100": Family("dgx_a100", "HOSTS", "hosts", ranks=lambda hosts: 8 * hosts),
    "dgx-h100": Family("dgx_h100", "HOSTS", "hosts", ranks=lambda hosts: 8 * hosts),
    "mi250": Family("mi250", "HOSTS", "hosts", ranks=lambda hosts: 16 * hosts),
    "nvswitch-hosts": Family("nvswitch_hosts", "RANKS...", "hosts", lambda *hosts: sum(hosts)),
    "dragonfly": Family("dragonfly", "GROUPSxROUTERS", joined=True),
    "fat-tree": Family("fat_tree", "ARITYxLEVELS", "same", lambda k, n: k ** min(n, 40)),
    "leaf-spine": Family("leaf_spine", "LEAVESxRANKSxSPINES", "same"),
    "bigraph": Family("bigraph", "RANKSxSWITCHES", "same"),
    "flattened-butterfly": Family("flattened_butterfly", "SIDE...", "same", joined=True),
    "twisted-torus": Family("twisted_torus", "SIDE...", "digraph"),
    "twisted-hypercube": Family(
        "twisted_hypercube", "DIMENSIONS", "digraph", lambda d: 2 ** min(d, 40)
    ),
    "circulant": Family("circulant", "RANKSxOFFSET...", "digraph", lambda n, *offsets: n),
    "shifted-ring": Family("shifted_ring", "RANKS", "digraph"),
    "hamming": Family("hamming", "LETTERSxALPHABET", "digraph", lambda n, q: q ** min(n, 40)),
    "kautz": Family(
        "kautz", "DEGREExLETTERS", "digraph", lambda d, n: d ** min(n, 40) * (d + 1)
    ),
    "generalized-kautz": Family("generalized_kautz", "DEGREExRANKS", "digraph", lambda d, m: m),
    "de-bruijn": Family("de_bruijn", "DEGREExLETTERS", "digraph", lambda d, n: d ** min(n, 40)),
    "complete-bipartite": Family(
        "complete_bipartite", "DEGREE", "digraph", lambda d: 2 * d, joined=True
    ),
    "double-binary-tree": Family("double_binary_tree", "RANKS", "digraph"),
    "distance-regular": Family("distance_regular", "DEGREExRANKS", "digraph", lambda d, m: m),
    "diamond": Family("diamond", "", "digraph", ranks=lambda: 8),
}  # fmt: skip

# Generations of TPU, by the device_kind of their chips. A chip of v2 or v3 is two devices.
SLICES = {
    "v4": "TPU v4",
    "v5e": "TPU v5 lite",
    "v5p": "TPU v5",
    "v6e": "TPU v6 lite",
    "v7x": "TPU7x",
}


def network_names() -> list[str]:
    """The short forms, as help and errors list them."""
    import jaxcoll as jc

    forms = [_form(name, family.numbers) for name, family in FAMILIES.items()]
    return [
        *forms,
        *(f"{name}:AxB[xC]" for name in SLICES),
        "v5p-128, tpu7x-4x4x4",
        "product:NETWORK,NETWORK",
        *(f"{machine}[:RANKS]" for machine in jc.measured.MACHINES),
    ]


def _form(name: str, numbers: str) -> str:
    repeated = {"SIDE...": "AxB..", "RANKS...": "RANKSxRANKS.."}
    text = repeated.get(numbers, numbers.replace("...", ".."))
    return f"{name}:{text}" if text else name


def named_network(text: str, alpha: Sequence[float] = (), bandwidth: Sequence[float] = ()):
    """The network of a name or file.

    Raises:
        click.UsageError: the text is neither a name nor a file, or does not take these numbers or
            links.
        ValueError: the library refuses the numbers.
    """
    name, _, rest = text.partition(":")
    if name in FAMILIES:
        return _of_family(name, _numbers(name, rest), (alpha, bandwidth))
    if name in SLICES:
        return _slice(name, _numbers(name, rest), (alpha, bandwidth))
    if name == "product":
        import jaxcoll as jc

        parts = rest.split(",")
        if len(parts) < 2:
            raise click.UsageError("a product has two or more networks; type product:ring:4,ring:8")
        return jc.topologies.product(*(named_network(part, alpha, bandwidth) for part in parts))
    if os.path.exists(text) or os.sep in text or text.endswith(".json"):
        return _of_file(text, (alpha, bandwidth))
    # Measured machines, and parts of them.
    if (machine := _measured(name)) is not None:
        ranks = _numbers(name, rest) if rest else (None,)
        if len(ranks) != 1 or any((alpha, bandwidth)):
            raise click.UsageError(
                f"{name} is a machine by its data sheet; type {name}, or {name}:8 for some ranks"
            )
        return machine.topology(*ranks)
    # Names of slices as Google's tools write them; files come first, since they may have any name.
    if re.match("(tpu7x|v[0-9][a-z]*)-", text):
        from jaxcoll.io import tpu_slices

        kind, sides = tpu_slices.sides(text)
        return _chips(kind, sides, (alpha, bandwidth))
    import jaxcoll as jc

    known = [*FAMILIES, *SLICES, *jc.measured.MACHINES]
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise click.UsageError(
        f"no network is called {text[:60]!r} and there is no such file; {meant}"
        "names and files are listed by: jaxcoll show --names"
    )


def is_name(text: str) -> bool:
    """Whether a text begins like a network's name, with any numbers."""
    name = text.partition(":")[0]
    return name in FAMILIES or name in SLICES or name == "product" or _measured(name) is not None


def _measured(name: str):
    """The measured machine of a name, or None."""
    import jaxcoll as jc

    return jc.measured.MACHINES.get(name)


def _numbers(name: str, text: str) -> tuple[int, ...]:
    form = _form(name, FAMILIES[name].numbers) if name in FAMILIES else f"{name}:AxB[xC]"
    if text and not _SIDES.fullmatch(text):
        raise click.UsageError(
            f"{name} takes numbers with x between them, got {shown(text)}; type {form}"
        )
    numbers = tuple(map(int, text.split("x"))) if text else ()
    if name in FAMILIES:
        wanted = FAMILIES[name].numbers
        count = len(wanted.split("x")) if wanted else 0
        enough = len(numbers) >= count if wanted.endswith("...") else len(numbers) == count
        if not enough:
            raise click.UsageError(f"{name} was given {len(numbers)} numbers; type {form}")
    return numbers


def _of_family(name: str, numbers: tuple[int, ...], speeds: Speeds):
    import jaxcoll as jc

    family = FAMILIES[name]
    # Checked before building: a hypercube of 2^60 ranks would first need the memory.
    ranks, most = family.ranks(*numbers), _MOST_JOINED if family.joined else _MOST_RANKS
    if ranks > most:
        raise click.UsageError(f"{name} of {ranks} ranks is too large; it is built up to {most}")
    if family.links == "digraph":
        alpha, bandwidth = (_single(name, each) for each in speeds)
        make = getattr(jc.topologies.generative, family.function)
        # A circulant takes its ranks and any number of offsets.
        arguments = (numbers[0], numbers[1:]) if name == "circulant" else numbers
        return make(*arguments).topology(**_given(alpha=alpha), **_given(link_bandwidth=bandwidth))
    make = getattr(jc.topologies, family.function)
    if family.links == "hosts":
        return _of_hosts(name, make, numbers, speeds)
    if family.links == "same":
        alpha, bandwidth = (_single(name, each) for each in speeds)
    else:
        # One value for all dimensions, or one per dimension.
        alpha, bandwidth = (each[0] if len(each) == 1 else each or None for each in speeds)
    return make(*numbers, **_given(alpha=alpha, bandwidth=bandwidth))


def _of_hosts(name: str, make: Callable[..., Any], numbers: tuple[int, ...], speeds: Speeds):
    """A network of hosts; two speeds are for links inside hosts and for those between them."""
    if max(map(len, speeds)) > 2:
        raise click.UsageError(
            f"{name} has links inside hosts and between them; give at most two values"
        )
    (alpha, network_alpha), (inside, network) = ((*each, None, None)[:2] for each in speeds)
    arguments: tuple[Any, ...] = numbers
    if name == "nvswitch-hosts":
        # The other families use a vendor's hosts, whose bandwidths the library knows.
        if inside is None or network is None:
            raise click.UsageError(
                f"{name} needs the bandwidths inside hosts and between them; type "
                "--bandwidth 450GB/s,50GB/s"
            )
        arguments = (numbers,)
    speeds_of = {"inside": inside, "network": network, "alpha": alpha}
    return make(*arguments, **_given(**speeds_of, network_alpha=network_alpha))


def _single(name: str, values: Sequence[float]) -> float | None:
    if len(values) > 1:
        raise click.UsageError(f"all links of {name} are the same; give one value, not several")
    return values[0] if values else None


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _slice(name: str, sides: tuple[int, ...], speeds: Speeds):
    flat = name in ("v5e", "v6e")
    if len(sides) not in ((2,) if flat else (2, 3)) or 0 in sides:
        example = "4x8" if flat else "4x4x8"
        raise click.UsageError(
            f"a slice of {name} is named by its sides in chips; type {name}:{example}"
        )
    if math.prod(sides) > _MOST_RANKS:
        raise click.UsageError(f"a slice has at most {_MOST_RANKS} chips")
    return _chips(SLICES[name], sides, speeds)


def _chips(kind: str, sides: tuple[int, ...], speeds: Speeds):
    from jaxcoll.io import tpu_slices

    alpha, bandwidth = (_single(kind, each) for each in speeds)
    return tpu_slices.network(kind, sides, alpha=alpha, bandwidth=bandwidth)


def _of_file(path: str, speeds: Speeds):
    import jaxcoll as jc

    if (description := description_of(path)) is not None:
        return described_network(path, description, {}, speeds)
    if any(speeds):
        raise click.UsageError(
            "a file states the speeds of its links; leave --alpha and --bandwidth out"
        )
    if os.path.isfile(path) and (kind := needs_network(path)):
        raise click.UsageError(
            f"{path} is {kind}, which does not name the network; give that, as torus:4x4"
        )
    found = jc.io.load(path)
    if isinstance(found, jc.Schedule):
        return found.topology
    if not isinstance(found, jc.Topology):
        raise click.UsageError(f"{path} holds a {type(found).__name__}, not a network")
    return found


class NetworkName(click.ParamType):
    """A network's name or file, read once its links are known; completes names and files."""

    name = "network"

    def shell_complete(self, ctx, param, incomplete):
        from click.shell_completion import CompletionItem

        names = [name for name in (*FAMILIES, *SLICES) if name.startswith(incomplete)]
        items = [CompletionItem(f"{name}:") for name in names]
        return [*items, CompletionItem(incomplete, type="file")]


def network_options(command: Any) -> Any:
    """The argument NETWORK with its options for links and losses; the command gets ``network``.

    With ``--from`` there is no NETWORK, and the collective stands in its place.
    """

    @functools.wraps(command)
    # The wrapper keeps the name of the command, because click takes it from there.
    def with_network(network, table, without, slow, in_network, **others):
        speeds = others.pop("alpha"), others.pop("bandwidth")
        completing = {name: others.pop(name) for name in OPTIONS}
        # With --from, click has parsed the collective as NETWORK.
        if table is not None and network is not None:
            if "collective" not in others:
                raise click.UsageError(f"give {network!r} or --from {table}, not both")
            others["collective"] = collective_in(network, "--from")
        with working("building the network"):
            if table is not None:
                built = network_from(table, completing, speeds)
            elif network is not None:
                built = completed_network(network, completing, speeds)
            else:
                raise click.UsageError("say which network: torus:4x4, FILE.json, or --from FILE")
            built = after_failures(built, without, slow, in_network)
        # Missing links decide the answer, so stderr lists them.
        if built.losses and not others.get("as_json"):
            click.echo(f"network: {built.name}", err=True)
        return command(network=built, **others)

    made: Any = with_network
    for decorate in (
        description_options,
        click.option(
            "--from", "table", metavar="FILE", help="nvidia-smi topo -m, NCCL's, others; or -.",
        ),
        failure_options,
        link_options,
        click.argument("network", type=NetworkName(), required=False),
    ):  # fmt: skip
        made = decorate(made)
    return made


def collective_in(text: str, option: str) -> Any:
    """The collective in the place of NETWORK, as the command reads it.

    Raises:
        click.UsageError: no collective has this name; ``option`` states the network.
    """
    context = click.get_current_context()
    reader = next(each.type for each in context.command.params if each.name == "collective")
    try:
        return reader.convert(text, None, context)
    except click.BadParameter:
        from jaxcoll.kinds import NAMES

        raise click.UsageError(
            f"no collective is called {text[:40]!r}, and {option} says the network; known: "
            f"{', '.join(NAMES)}"
        ) from None


def link_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that state links."""
    for decorate in (
        click.option(
            "--bandwidth", type=BANDWIDTH_LIST, default=(),
            help="Of links: 50GB/s, or A,B by dimension or level.",
        ),
        click.option("--alpha", type=TIMES, default=(), help="Latency of links: 0.5us."),
    ):  # fmt: skip
        command = decorate(command)
    return command


def description_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that complete a description with facts that the format does not hold."""
    for decorate in (
        click.option("--speeds", type=click.Choice(("nominal", "nccl")),
                     help="For a FILE: use data sheets' or NCCL's."),
        click.option("--nodes", metavar="NAMES", help="For a FILE: only these hosts, gpu[01-16]."),
        click.option("--hosts", type=click.IntRange(1), help="For a FILE: its equal hosts; 1."),
        click.option("--gpu", help="For a FILE: its GPUs, h100 or h100:8."),
    ):  # fmt: skip
        command = decorate(command)
    return command


def completed_network(text: str, completing: dict[str, Any], speeds: Speeds = ((), ())):
    """The network of a name or file; options that complete a description need a file."""
    if os.path.isfile(text) and not is_name(text):
        return network_from(text, completing, speeds)
    if any(completing.values()):
        if is_name(text) or not text.endswith((".txt", ".xml", ".conf", ".yaml", ".json")):
            raise click.UsageError(f"{NAMED} only apply to a FILE, and {shown(text)} is none")
        raise click.UsageError(f"{text}: No such file or directory")
    return named_network(text, *speeds)


def network_from(path: str, completing: dict[str, Any], speeds: Speeds):
    """The network of ``--from``: a description with its options, or any file of a network."""
    if path != "-" and not os.path.exists(path):
        raise click.UsageError(f"{path}: No such file or directory")
    found = None if path == "-" else description_of(path)
    if path != "-" and found is None and not any(completing.values()):
        return _of_file(path, speeds)
    return described_network(path, found, completing, speeds)
