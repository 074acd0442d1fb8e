"""The page of predicted and measured times, in Markdown, from the tables alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from jaxcoll.errors import FormatError
from jaxcoll.measured import tables
from jaxcoll.numerics import checks
from jaxcoll.validation import (
    CLASSES,
    MOST,
    TARGETS,
    Errors,
    Prediction,
    errors,
    predictions,
)
from jaxcoll.validation.charges import of_slices

_WORST = 20  # rows that are shown by name, of each way
_LEAST = 2**20  # bytes from which they are
# Where the figure of each way lies, from the page.
FIGURES = {way: f"images/validation-{way}.png" for way in ("sizes", "ranks", "links")}

_HEAD = """# Predicted and measured

How far may a predicted time be from the measured one? This page answers that for every published
time that the library ships ([measured](measured.md)) and that others around it can predict. Some
rows are held out, and predicted from the rest.

Means are of absolute errors; a worst error has its sign, + where the prediction is too slow. Sizes
are those of a rank's buffer. From 1 MiB the aim is a mean of at most 12 %, from 64 MiB of 5 %, and
no row above 25 %. **Bold** numbers miss it.

This page is written by `jaxcoll measured --page docs/validation.md{seed}`. The seed draws the rows
that are held out, and none of them is in any fit. In the figures each point is a row. The line is
where the prediction is right, the band where it is right within a quarter; titles count the rows.
"""


def page(seed: int = 0) -> str:
    """The whole page.

    Args:
        seed: the seed of the rows that are held out.

    Raises:
        FormatError: no seed.
    """
    said = _HEAD.format(seed=f" --seed {seed}" if seed else "")
    parts = ["\n".join(section(seed)) for section in SECTIONS.values()]
    return "\n".join([said, *parts]).rstrip("\n") + "\n"


def points(way: str, seed: int = 0) -> dict[str, list[tuple[float, float]]]:
    """Seconds as measured and as predicted, by machine: the points of a figure of the page.

    Args:
        way: one of ``FIGURES``.
        seed: the seed of the rows that are held out.

    Raises:
        FormatError: another way; no seed.
    """
    checks.choice(way, FIGURES, "way", FormatError)
    found: dict[str, list[tuple[float, float]]] = {}
    for each in predictions(way, seed):
        found.setdefault(each.curve.machine, []).append((each.seconds, each.predicted))
    return found


def _figure(way: str) -> str:
    """The line that shows a figure, which lies beside the page."""
    return f"![Predicted over measured seconds, by machine]({FIGURES[way]})\n"


def _by_sizes(seed: int) -> Iterator[str]:
    found = predictions("sizes", seed)
    yield "## Between measured sizes\n"
    yield (
        "A third of the inner sizes of every curve is held out. It is predicted by a straight\n"
        "line over bytes between the rows around it, as `jc.expect` reads the tables. Below 1 MiB\n"
        "rows that fall with the size, as cold starts do, count as their median. Before\n"
        "rows are held out, sizes are a factor of two apart, on Fugaku of eight. Where\n"
        "neighbours of one curve differ by chance, so does the prediction.\n"
    )
    yield _figure("sizes")
    yield from _grid(errors(found, ("machine", "size_class")), ("machine",))
    yield "By collective, from 1 MiB:\n"
    large = [each for each in found if each.nbytes >= _LEAST]
    yield from _grid(
        errors(large, ("machine", "collective", "size_class")), ("machine", "collective")
    )
    yield from _worst(found)


def _by_ranks(seed: int) -> Iterator[str]:
    found = predictions("ranks", seed)
    yield "## Between measured numbers of ranks\n"
    yield (
        "Every curve is predicted from those on fewer and on more ranks, by a line over\n"
        "logarithms.\n"
    )
    yield _figure("ranks")
    yield from _grid(errors(found, ("machine", "size_class")), ("machine",))
    yield from _worst(found)


def _by_sources(seed: int) -> Iterator[str]:
    found = predictions("sources", seed)
    yield "## By another source\n"
    yield (
        "Some tables have the same collective on as many ranks of machines of one name, measured\n"
        "by other people with other versions of the software. Here each predicts the other.\n"
        "Nothing is fitted, so this is how far a published time may be from one's own.\n"
    )
    yield from _grid(errors(found, ("machine", "table", "size_class")), ("machine", "table"))
    yield from _worst(found)


def _by_links(seed: int) -> Iterator[str]:
    found = predictions("links", seed)
    yield "## By fitted links\n"
    yield (
        "Here the library's own model predicts: one latency and one bandwidth per link. These\n"
        "are fitted to the rows from 1 MiB of four collectives among 8 ranks that are not held\n"
        "out. Schedules stand for the algorithms of NCCL and RCCL (rings, one step on full\n"
        "meshes). The model knows neither protocols nor sums in switches. Plans and `auto`\n"
        "calculate with such links where a network is calibrated.\n"
    )
    yield _figure("links")
    yield from _grid(
        errors(found, ("machine", "collective", "size_class")), ("machine", "collective")
    )
    yield from _worst(found)


def _by_charges(seed: int) -> Iterator[str]:
    found = predictions("charges", seed)
    yield "## By the charges of programs\n"
    yield (
        "`explain`, `compare` and the default price programs by `ExecutionCosts`: links by the\n"
        "data sheet, and start-ups and delays that are fitted to published permutes, all_to_alls\n"
        "(steps of schedules) and collectives among 8 ranks (those of `jax.lax`). Here they are\n"
        "fitted without the rows that are held out, and predict these. The shipped charges have\n"
        "seen all rows (`scripts/bench charges --record`). No table has a program of several\n"
        "steps.\n"
    )
    yield from _grid(
        errors(found, ("machine", "collective", "size_class")), ("machine", "collective")
    )
    yield from _worst(found)
    yield (
        "Of TPUs two sizes of a permute are published for two slices each, too few to hold any\n"
        "out, and one psum, of which nothing was fitted:\n"
    )
    yield "| machine | collective | bytes | measured, us | by the charges `tpu`, us | error, % |"
    yield "|---|---|---|---|---|---|"
    for curve, seconds in of_slices():
        for nbytes, took, by in zip(curve.nbytes, curve.seconds, seconds, strict=True):
            yield (
                f"| {curve.machine} | {curve.collective} | {nbytes} | {1e6 * took:.1f} | "
                f"{1e6 * by:.1f} | {100 * (by / took - 1):+.0f} |"
            )
    yield ""


def _carried(seed: int) -> Iterator[str]:
    yield "## From a small torus to a large one\n"
    yield (
        "Times of one algorithm on 4x4x4 nodes of Fugaku predict the same algorithm on larger\n"
        "tori, of which nothing is fitted. Of `3dtorus`, which passes blocks on around rings,\n"
        "they do so by a start-up of a step and of a block, and by the part of the links' speed\n"
        "that blocks of a size reach (`jaxcoll.validation.blocks`); by one latency per link,\n"
        "errors on 8x8x8 were -31 to -50 % below 512 MiB. Of recursive doubling, as the\n"
        "synthesizer `rhd` makes it, they do so by fitted links. Bold is beyond 15 %.\n"
    )
    yield "| machine | algorithm | bytes | measured, us | predicted, us | error, % |"
    yield "|---|---|---|---|---|---|"
    for each in predictions("carried", seed):
        error = _bold(f"{100 * each.error:+.0f}", abs(each.error) > 0.15)
        yield (
            f"| {each.curve.machine} | {each.curve.algorithm} | {each.nbytes} | "
            f"{1e6 * each.seconds:.0f} | {1e6 * each.predicted:.0f} | {error} |"
        )
    yield ""


def _by_tables(seed: int) -> Iterator[str]:
    found = predictions("sizes", seed)
    yield "## Tables\n"
    yield "| table | times | held out | mean, % | source, licence | software | date |"
    yield "|---|---|---|---|---|---|---|"
    for table in tables():
        of_table = [each for each in found if each.table == table.name]
        mean = "" if not of_table else f"{100 * errors(of_table, ('way',))[('sizes',)].mean:.1f}"
        yield (
            f"| {table.name} | {table.rows} | {len(of_table)} | {mean} | {table.source}; "
            f"{table.licence} | {table.software} | {table.date} |"
        )
    yield ""


SECTIONS: dict[str, Callable[[int], Iterator[str]]] = {
    "sizes": _by_sizes,
    "ranks": _by_ranks,
    "sources": _by_sources,
    "links": _by_links,
    "charges": _by_charges,
    "carried": _carried,
    "tables": _by_tables,
}

# ---------------------------------------------------------------------- tables


def _grid(found: dict[tuple, Errors], names: Sequence[str]) -> Iterator[str]:
    """A row for each machine, or machine and collective, and three columns for each class."""
    classes = [words for _, words in CLASSES if any(key[-1] == words for key in found)]
    columns = [f"{words}: rows | mean, % | worst, %" for words in classes]
    yield f"| {' | '.join((*names, *columns))} |"
    yield "|" + "---|" * (len(names) + 3 * len(classes))
    for key in sorted({key[:-1] for key in found}):
        cells = [*key]
        for words in classes:
            cells += _cells(found.get((*key, words)), words)
        yield f"| {' | '.join(cells)} |"
    yield ""


def _cells(each: Errors | None, words: str) -> list[str]:
    if each is None:
        return ["", "", ""]
    aim, worst = TARGETS.get(words), each.worst.error
    mean = _bold(f"{100 * each.mean:.1f}", aim is not None and each.mean > aim)
    return [
        str(each.rows), mean,
        _bold(f"{100 * worst:+.0f}", aim is not None and abs(worst) > MOST),
    ]  # fmt: skip


def _bold(text: str, is_beyond: bool) -> str:
    return f"**{text}**" if is_beyond else text


def _worst(found: Sequence[Prediction]) -> Iterator[str]:
    large = [each for each in found if each.nbytes >= _LEAST]
    beyond = sum(abs(each.error) > MOST for each in large)
    yield (
        f"Of {len(large)} rows from 1 MiB {beyond} are off by more than {100 * MOST:.0f} %. "
        "The worst:\n"
    )
    yield "| row | bytes | measured, us | predicted, us | error, % |"
    yield "|---|---|---|---|---|"
    for each in sorted(large, key=lambda each: -abs(each.error))[:_WORST]:
        yield (
            f"| {each.curve} | {each.nbytes} | {1e6 * each.seconds:.1f} | "
            f"{1e6 * each.predicted:.1f} | {100 * each.error:+.0f} |"
        )
    yield ""
