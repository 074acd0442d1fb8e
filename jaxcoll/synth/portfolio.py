"""Auto: many algorithms, rules and seeds, of which the quickest schedule is kept."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import ClassVar, NamedTuple

from jaxcoll.bounds import bound
from jaxcoll.collective import KINDS, Collective
from jaxcoll.errors import CollectiveError, JaxcollError
from jaxcoll.exact import as_fraction
from jaxcoll.numerics import checks
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.simulate import MODELS, simulate
from jaxcoll.synth.base import Synthesizer
from jaxcoll.synth.blueconnect import BlueConnect
from jaxcoll.synth.bruck import Bruck
from jaxcoll.synth.bucket import Bucket
from jaxcoll.synth.c_cube import CCube
from jaxcoll.synth.cascade import Cascade
from jaxcoll.synth.direct import Direct
from jaxcoll.synth.double_binary_tree import DoubleBinaryTree
from jaxcoll.synth.forestcoll import ForestColl
from jaxcoll.synth.hdrm import Hdrm
from jaxcoll.synth.hierarchical_ring import HierarchicalRing
from jaxcoll.synth.multitree import MultiTree
from jaxcoll.synth.rhd import Rhd
from jaxcoll.synth.ring import Ring
from jaxcoll.synth.ring_2d import Ring2D
from jaxcoll.synth.rules import RULES, rule_named
from jaxcoll.synth.swing import Swing
from jaxcoll.synth.tacos import Tacos
from jaxcoll.synth.themis import Themis
from jaxcoll.synth.tto import Tto
from jaxcoll.topology import Topology

# At most one piece a chunk of a shard: messages are cut into as many as there are.
_ALL = 2**16

# Every algorithm with each of its fields that matter besides the number of chunks.
BASELINES: tuple[Synthesizer, ...] = (
    Bucket(),
    Ring(),
    Ring(bidirectional=False),
    Direct(),
    Rhd(),
    Rhd(far_first=True),
    Rhd(pieces=_ALL),
    Rhd(far_first=True, pieces=_ALL),
    Bruck(),
    Bruck(pieces=_ALL),
    DoubleBinaryTree(),
    DoubleBinaryTree(pieces=1),
    HierarchicalRing(),
    Ring2D(),
    Swing(),
    Swing(pieces=_ALL),
    BlueConnect(),
    Themis(),
    Cascade(),
    CCube(),
    Tto(),
    Tto(pieces=1),
    Hdrm(),
    MultiTree(),
    ForestColl(quick=True),
    ForestColl(order="steps", quick=True),
)
_NEED, _PATIENT = "downstream-need", "patient"
# The rule that most often does best comes first.
_RULES = (Tacos.rule, *(rule for rule in RULES if rule != Tacos.rule))
CHUNKS = (1, 2, 4, 8)

# Called as candidates are timed: how many are, of how many so far known, which, and its seconds
# (None where it is not defined for the problem).
Progress = Callable[[int, int, str, float | None], None]


class _Tried(NamedTuple):
    """A candidate, and its time and schedule, or why it was refused."""

    label: str
    time: Fraction | None
    schedule: Schedule | None
    refused: str

    def row(self) -> dict[str, object]:
        if self.time is None:
            return {"candidate": self.label, "refused": self.refused}
        return {"candidate": self.label, "time": float(self.time)}


@dataclasses.dataclass(frozen=True)
class Portfolio(Synthesizer):
    """Tries many synthesizers and keeps the schedule that takes the least simulated time.

    First the baselines, and TACOS with every size of message; then TACOS with the size of message
    that did best, by every rule with every seed, unless a bound is met before. The certificate says
    which candidate won and what each took; ties go to the one tried first. The result does not
    depend on the number of threads.

    Attributes:
        nbytes: bytes of a rank's buffer to be quick for; 64 MiB when omitted.
        model: the link model to be quick by.
        baselines: synthesizers to try, told ``nbytes`` where they have a field for it, and as
            they are where they have no size of their own; those not defined for a problem are
            passed over.
        rules: rules of TACOS, names in ``rules.RULES``.
        seeds: random seeds a rule.
        attempts: attempts of TACOS a seed.
        aggregate: sizes of message, as for ``Tacos``.
        threads: candidates that run at once; the processor's cores when None.
        progress: called with every candidate done; see ``Progress``.

    Raises:
        CollectiveError: a field out of range.
    """

    nbytes: float = 2**26
    model: str = "astra"
    baselines: tuple[Synthesizer, ...] = BASELINES
    rules: tuple[str, ...] = _RULES
    seeds: int = 2
    attempts: int = 2  # one by the paths of least cost, one by those of fewest links
    aggregate: tuple[int | None, ...] = (1, 2, 4, 8, None)
    threads: int | None = dataclasses.field(default=None, compare=False)
    progress: Progress | None = dataclasses.field(default=None, compare=False, repr=False)

    name: ClassVar[str] = "auto"
    kinds: ClassVar[frozenset[str]] = frozenset(KINDS)

    def __post_init__(self) -> None:
        for what in ("baselines", "rules", "aggregate"):
            value = checks.members(getattr(self, what), what, CollectiveError)
            checks.put(self, **{what: value})
        for each in self.baselines:
            checks.instance(each, Synthesizer, "a baseline", CollectiveError)
        for rule in self.rules:
            rule_named(rule)
        checks.choice(self.model, MODELS, "model", CollectiveError)
        checks.integer_fields(self, CollectiveError, "seeds")
        checks.integer_fields(self, CollectiveError, "threads", or_none=True)
        if not (self.baselines or (self.rules and self.aggregate)):
            raise CollectiveError("a portfolio needs baselines, or rules and sizes of message")
        for most in self.aggregate or (1,):
            self._tacos(RULES[0], most)

    def _tacos(self, rule: str, most: int | None) -> Tacos:
        return Tacos(rule, self.attempts, self.nbytes, aggregate=most)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """The quickest of all candidates' schedules; see ``Synthesizer``.

        Raises:
            CollectiveError: no candidate is defined for the problem.
        """
        first = [(repr(each), each, seed) for each in self._baselines()]
        count = len(first)
        sizes = self.aggregate if self.rules else ()
        first += [self._candidate(self.rules[0], most, seed) for most in sizes]
        goal = bound(topology, collective, self.nbytes).time
        with ThreadPoolExecutor(self.threads or os.cpu_count()) as pool:
            tried = self._try(pool, topology, collective, first, [])
            best = _quickest(tried)
            if sizes and (best.time is None or float(best.time) > goal * (1 + 1e-9)):
                matched = tried[count:]
                most = sizes[matched.index(_quickest(matched))]
                more = [
                    self._candidate(rule, most, seed + number)
                    for number in range(self.seeds)
                    for rule in self._rules(topology)
                    if (rule, number) != (self.rules[0], 0)
                ]
                tried += self._try(pool, topology, collective, more, tried)
                best = _quickest(tried)
        if best.schedule is None:
            reasons = "; ".join(f"{each.label}: {each.refused}" for each in tried)
            raise CollectiveError(f"no candidate is defined for {collective}: {reasons}")
        certificate = {
            "chosen": best.label,
            "model": self.model,
            "nbytes": self.nbytes,
            "time": float(best.time or 0),
            "bound": goal,
            "table": tuple(each.row() for each in tried),
        }
        return best.schedule.with_provenance(Provenance(certificate=certificate))

    def _rules(self, topology: Topology) -> tuple[str, ...]:
        """The rules, but for patience where no link is slow: that is downstream-need again."""
        alike = topology.is_direct and topology.is_homogeneous and _NEED in self.rules
        return tuple(rule for rule in self.rules if not (alike and rule == _PATIENT))

    def _baselines(self) -> list[Synthesizer]:
        told = [(each, for_size(each, self.nbytes)) for each in self.baselines]
        # One that has a size anyway is told it; for others to have none is a variant of its own.
        sizes = [pair[1:] if getattr(pair[0], "nbytes", None) else pair for pair in told]
        return list(dict.fromkeys(itertools.chain.from_iterable(sizes)))

    def _candidate(self, rule: str, most: int | None, seed: int) -> tuple[str, Synthesizer, int]:
        size = "any number of chunks" if most is None else f"{most} chunk{'s' * (most > 1)}"
        return f"tacos {rule}, {size} a message, seed {seed}", self._tacos(rule, most), seed

    def _try(
        self,
        pool: ThreadPoolExecutor,
        topology: Topology,
        collective: Collective,
        candidates: Sequence[tuple[str, Synthesizer, int]],
        before: Sequence[_Tried],
    ) -> list[_Tried]:
        def run(candidate: tuple[str, Synthesizer, int]) -> _Tried:
            label, synthesizer, seed = candidate
            try:
                schedule = synthesizer.synthesize(topology, collective, seed)
            except JaxcollError as error:
                return _Tried(label, None, None, str(error))
            time = simulate(schedule, self.nbytes, self.model).exact_time
            return _Tried(label, time, schedule, "")

        tried: list[_Tried] = []
        best: Fraction | None = None
        for each in pool.map(run, candidates):
            if self.progress is not None:
                done = len(before) + len(tried) + 1
                seconds = None if each.time is None else float(each.time)
                self.progress(done, len(before) + len(candidates), each.label, seconds)
            if each.time is not None and (best is None or each.time < best):
                best = each.time
                tried = [other._replace(schedule=None) for other in tried]
            elif best is not None:
                each = each._replace(schedule=None)  # only the best so far is worth its memory
            tried.append(each)
        return tried


def for_size(synthesizer: Synthesizer, nbytes: float) -> Synthesizer:
    """The synthesizer, told the bytes of a rank's buffer if it has a field for them."""
    if any(field.name == "nbytes" for field in dataclasses.fields(synthesizer)):  # type: ignore[arg-type]
        return dataclasses.replace(synthesizer, nbytes=float(nbytes))  # type: ignore[type-var]
    return synthesizer


def taken_by_auto(schedule: Schedule) -> str:
    """The algorithm whose schedule auto took, without its fields; empty if auto made none of it."""
    label = str(schedule.provenance.certificate.get("chosen", ""))
    return label.partition("(")[0].partition(",")[0]


def _quickest(tried: Iterable[_Tried]) -> _Tried:
    """The first of the quickest, or any where all were refused."""
    return min(tried, key=lambda each: (each.time is None, each.time or 0))


def best(
    topology: Topology,
    kind: str,
    nbytes: float,
    chunks: Sequence[int] | None = None,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    root: int | None = None,
    portfolio: Portfolio | None = None,
    seed: int = 0,
) -> Schedule:
    """The quickest schedule of a portfolio over several numbers of chunks a shard.

    Args:
        kind: kind of collective.
        nbytes: bytes of a rank's buffer, above 0.
        chunks: chunks a shard to try; when omitted those of ``CHUNKS``, and on a grid the number
            with which ``Bucket`` loads all links alike.
        portfolio: what to try; its ``nbytes`` is replaced.

    Raises:
        CollectiveError: a bad kind, nbytes or number of chunks.
    """
    if chunks is None:
        own = {Bucket.granularity(topology)} if topology.grid is not None else set()
        chunks = sorted({*CHUNKS, *own})
    portfolio = dataclasses.replace(portfolio or Portfolio(), nbytes=nbytes)
    found: tuple[Fraction, Schedule] | None = None
    for k in chunks:
        collective = Collective(kind, topology.num_ranks, k, groups, root)  # type: ignore[arg-type]
        schedule = portfolio.synthesize(topology, collective, seed)
        time = simulate(schedule, as_fraction(nbytes), portfolio.model).exact_time
        if found is None or time < found[0]:
            found = time, schedule
    if found is None:
        raise CollectiveError("best needs one number of chunks a shard or more to try")
    return found[1]
