"""Numbers in the prose of the README and of docs/ are those that the commands beside them print.

A page marks the numbers of a command behind it, with the beginning of the printed line that each is
from: in

    ... takes 3.78 ms, 99 % of the bound (`jaxcoll compare ...`). <!-- printed: auto, auto -->

the last two numbers before the command are in the line that begins with ``auto``, with their units.
Comments in blocks of Python are held where the blocks run (``tests/claims/printed.py``), tables and
sentences of studies where their rows are recorded (``experiments/recording.py``).
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jaxcoll as jc
from jaxcoll.bounds.throughput import fixed_k
from jaxcoll.cli import COMMANDS
from jaxcoll.numerics.machine_code import signatures
from tests.claims.printed import assert_claimed, holds

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```.*?^```\n", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`]*`")
COMMAND = re.compile(r"`(jaxcoll [^`]+)`")
MARK = re.compile(r"<!-- printed: (.*?) -->", re.DOTALL)
MEASURE = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?) ?(%|[num]?s\b|[kKMG]i?B(?:/s)?\b|us\b)")


def paragraphs(text: str) -> list[str]:
    """Those of a page, without its blocks of code."""
    return re.split(r"\n\s*\n", FENCE.sub("", text))


@functools.cache
def printed(command: str) -> tuple[int, str]:
    """Exit code and output of a command of the library."""
    program = "import sys; from jaxcoll.cli import main; sys.exit(main(sys.argv[1:]))"
    asked = [sys.executable, "-c", program, *command.split()[1:]]
    done = subprocess.run(asked, cwd=ROOT, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def false_numbers(paragraph: str, output: Callable[[str], tuple[int, str]]) -> Iterator[str]:
    """A sentence for each marked number of a paragraph that the command does not print there."""
    for mark in MARK.finditer(paragraph):
        before = paragraph[: mark.start()]
        *_, command = COMMAND.finditer(before)
        lines = [line.strip() for line in mark[1].split(",")]
        claims = [*MEASURE.finditer(CODE.sub("", before[: command.start()]))][-len(lines) :]
        if len(claims) < len(lines):
            yield f"`{command[1]}` has {len(lines)} lines and {len(claims)} numbers before it"
        code, text = output(command[1])
        if code:
            yield f"`{command[1]}` ended with {code}: {text[-500:]}"
            continue
        for claim, line in zip(claims, lines, strict=False):
            found = [each for each in text.splitlines() if each.split()[:1] == [line]]
            same = [each for row in found for each in MEASURE.finditer(row) if each[2] == claim[2]]
            if not any(holds(claim[1], each[1]) for each in same):
                yield f"{claim[0]} is not what `{command[1]}` printed: {found or text}"


MARKED = [
    pytest.param(paragraph, id=f"{page.name}-{COMMAND.findall(paragraph)[-1]}")
    for page in PAGES
    for paragraph in paragraphs(page.read_text(encoding="utf-8"))
    if MARK.search(paragraph)
]


@pytest.mark.parametrize("paragraph", MARKED)
def test_commands_print_the_numbers_of_the_prose_before_them(paragraph):
    assert list(false_numbers(paragraph, printed)) == []


# ---------------------------------------------------------------------- counted and computed


def reached_by_trees() -> list[float]:
    """GB/s of two MI250 hosts by 1 to 5 trees per rank, and by as many as are best."""
    topology = jc.topologies.mi250(2)
    best = jc.bounds.optimum(topology)
    scales = {k: fixed_k(topology, k, best=best).U for k in (*range(1, 6), best.k)}
    assert best.k == 83
    return [float(topology.num_ranks * k / scale) / 1e9 for k, scale in scales.items()]


def default_on_a_torus() -> list[float]:
    """Of 256 KiB on the README's torus: an all_gather over the bound; us and % of an all_reduce."""
    topology, nbytes = jc.topologies.torus(2, 4, alpha=0.5e-6, bandwidth=50e9), 2**18
    times, least = [
        [take(kind) for kind in ("all_gather", "all_reduce")]
        for take in (
            lambda kind: jc.simulate(jc.synthesize(topology, kind, nbytes=nbytes), nbytes).time,
            lambda kind: jc.bound(topology, kind, nbytes=nbytes).time,
        )
    ]
    return [times[0] / least[0], 1e6 * times[1], 100 * least[1] / times[1]]


# Of a page: the words around the numbers, and the numbers.
COMPUTED: list[tuple[str, str, Callable[[], list[float]]]] = [
    ("README.md", r"by (\d+) synthesizers", lambda: [len({*jc.synth.SYNTHESIZERS} - {"auto"})]),
    ("docs/install.md", r"\| commands \| (\d+) \|", lambda: [len(COMMANDS)]),
    (
        "docs/architecture.md",
        r"(\d+) in (\d+) kernels",
        lambda: [sum(map(len, signatures().values())), len(signatures())],
    ),
    (
        "docs/forestcoll.md",
        r"MI250 hosts reach (\d+), (\d+), (\d+), (\d+), (\d+) GB/s with 1 to 5 trees and (\d+)",
        reached_by_trees,
    ),
    (
        "docs/tacos.md",
        r"256 KiB takes ([\d.]+) times the bound, .* takes ([\d.]+) us, (\d+) % of the bound",
        default_on_a_torus,
    ),
]


@pytest.mark.parametrize(("page", "words", "compute"), COMPUTED)
def test_numbers_without_a_command_are_those_computed(page, words, compute):
    assert_claimed(page, words, compute())


# ---------------------------------------------------------------------- the check itself


SAID = "It takes {} and {} of two (`jaxcoll compare x`). <!-- printed: auto, nccl_ring -->"
PRINTED = "(bound)  3.752 ms\nauto  3.781 ms  99.2 %\nnccl_ring  4.715 ms  79.6 %\n"


@pytest.mark.parametrize(
    ("numbers", "false"),
    [
        (("3.78 ms", "80 %"), []),
        (("3.781 ms", "4.72 ms"), []),
        (("3.79 ms", "79.6 %"), ["3.79 ms"]),
        (("3.78 us", "4.2 ms"), ["3.78 us", "4.2 ms"]),
        (("4.715 ms", "3.781 ms"), ["4.715 ms", "3.781 ms"]),  # each in the other's line
    ],
)
def test_a_false_number_is_named_with_the_command(numbers, false):
    told = list(false_numbers(SAID.format(*numbers), lambda command: (0, PRINTED)))
    assert [
        sentence.partition(" is not what `jaxcoll compare x` printed")[0] for sentence in told
    ] == false


def test_a_command_that_fails_is_named_too():
    (told,) = false_numbers(SAID.format("1 ms", "1 ms"), lambda command: (2, "no network x"))
    assert told == "`jaxcoll compare x` ended with 2: no network x"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_numbers_beside_a_command_are_marked(page):
    """In a sentence with a command of the library: times, sizes and percentages."""
    for paragraph in paragraphs(page.read_text(encoding="utf-8")):
        if not MARK.search(paragraph) and not paragraph.lstrip().startswith("|"):
            for sentence in re.split(r"(?<=[.:;])\s", paragraph):
                measured = MEASURE.search(CODE.sub("", sentence))
                assert not (COMMAND.search(sentence) and measured), sentence
