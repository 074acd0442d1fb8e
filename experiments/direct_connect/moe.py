"""Fig. 3.9: expert-parallel training of Switch Transformers, by topology.

Fedus, Zoph and Shazeer, "Switch Transformers" (JMLR 2022): an encoder and a decoder in which some
feed-forward layers are a router and experts, one expert per token. Experts are sharded over all
ranks, everything else is replicated (dissertation, App. A.1.4).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from matplotlib.figure import Figure

from experiments.config import PaperValue, StudyConfig
from experiments.direct_connect.baselines import Machine
from experiments.direct_connect.many_ranks import BOUND, OURS, RING, TORUS, TREES
from experiments.direct_connect.networks import (
    EXCHANGES_FIRST,
    Compute,
    Exchange,
    Gradient,
    Iteration,
    Network,
    Operation,
    baselines,
    best_bucket,
    found_networks,
)
from experiments.figures import stacked_bars
from experiments.limits import Count, among, at_least, one_of
from experiments.study import ConfigError, Rows, tell
from experiments.workloads import Accelerator, load_accelerator
from experiments.workloads.shapes import Product
from jaxcoll.draw import format_bytes


class Block(NamedTuple):
    """A part of the network, for one sample."""

    products: tuple[Product, ...]  # of its forward pass
    parameters: int  # weights that every rank has a copy of
    # Values that an all-to-all moves before it and another one after it; 0 for all but experts
    exchanged: int = 0


@dataclasses.dataclass(frozen=True)
class SwitchTransformer:
    """The sizes of a model; biases and normalization are left out."""

    layers: Count  # of the encoder, and as many of the decoder
    hidden: Count  # values per token between layers
    inner: Count  # values per token inside a feed-forward layer
    gated: bool  # whether feed-forward layers have a gate, a third matrix
    # heads, head_size: of attention
    heads: Count
    head_size: Count
    experts: Count  # per sparse layer
    sparse_every: Count  # one of so many feed-forward layers is sparse
    vocabulary: Count  # rows of the embedding, which the last product shares

    @property
    def parameters(self) -> int:
        """All weights, those of all experts included."""
        expert = sum(k * n for _, k, n in self._feed_forward(1))
        sparse = 2 * (self.layers // self.sparse_every)
        return self.replicated + sparse * self.experts * expert

    @property
    def replicated(self) -> int:
        """Weights that every rank has a copy of."""
        return sum(block.parameters for block in self.blocks(1, 1))

    def blocks(self, source: int, target: int) -> tuple[Block, ...]:
        """In the order of the forward pass, of a sample of so many tokens in and out."""
        embedding = Block((), self.vocabulary * self.hidden)
        logits = Block((Product(target, self.hidden, self.vocabulary),), 0)
        encoder, decoder = self._stack(source), self._stack(target, source)
        return (embedding, *encoder, *decoder, logits)

    def _stack(self, tokens: int, source: int | None = None) -> Iterator[Block]:
        """An encoder; with a source, the decoder that attends to it."""
        for layer in range(1, self.layers + 1):
            yield self._attention(tokens, tokens)
            if source is not None:
                yield self._attention(tokens, source)
            products = self._feed_forward(tokens)
            if layer % self.sparse_every:
                yield Block(products, sum(k * n for _, k, n in products))
                continue
            router = Product(tokens, self.hidden, self.experts)
            yield Block((router,), self.hidden * self.experts)
            yield Block(products, 0, tokens * self.hidden)

    def _attention(self, tokens: int, source: int) -> Block:
        width = self.heads * self.head_size
        products = (
            Product(tokens, self.hidden, width),  # queries
            Product(source, self.hidden, 2 * width),  # keys and values
            Product(tokens, width, source),  # scores of all heads
            Product(tokens, source, width),
            Product(tokens, width, self.hidden),
        )
        return Block(products, 4 * self.hidden * width)

    def _feed_forward(self, tokens: int) -> tuple[Product, ...]:
        up = Product(tokens, self.hidden, self.inner)
        return (up,) * (2 if self.gated else 1) + (Product(tokens, self.inner, self.hidden),)


def operations(
    blocks: Sequence[Block],
    accelerator: Accelerator,
    *,
    samples: int,
    value_bytes: int,
) -> tuple[Operation, ...]:
    """Forward and backward pass of a rank; tokens are spread evenly over the experts.

    The backward pass has two products of the size of each forward product. A gradient is complete
    when the backward pass of its block is.

    Args:
        blocks: in the order of the forward pass.
        accelerator: says how long products take.
        samples: samples of the rank.
        value_bytes: bytes of an activation or gradient.

    Raises:
        ConfigError: samples or bytes below 1, or no blocks.
    """
    at_least("samples", samples, 1)
    at_least("value_bytes", value_bytes, 1)
    if not blocks:
        raise ConfigError("a model needs at least one block, got none")
    found: list[Operation] = []
    for block in blocks:
        forward = Compute(accelerator.seconds(block.products, samples))
        found += _around(block, forward, samples * value_bytes)
    for block in reversed(blocks):
        # Of x W the gradients are g W^T and x^T g: two products of the same number of operations.
        backward = [Product(m, n, k) for m, k, n in block.products]
        backward += [Product(k, m, n) for m, k, n in block.products]
        compute = Compute(accelerator.seconds(backward, samples))
        found += _around(block, compute, samples * value_bytes)
        if block.parameters:
            found.append(Gradient(block.parameters * value_bytes))
    return tuple(found)


def _around(block: Block, compute: Compute, bytes_per_value: int) -> Iterator[Operation]:
    """Compute, of experts between the all-to-alls that bring tokens and return them."""
    if not block.exchanged:
        yield compute
        return
    exchange = Exchange(block.exchanged * bytes_per_value)
    yield from (exchange, compute, exchange)


# ---------------------------------------------------------------------- Figure 3.9


NETWORKS = (OURS, TORUS, RING, TREES, BOUND)
PARTS = ("compute", "exposed all_reduce", "all-to-all")
SHARE = "share of all-to-all, %"
OVER_BOUND = "most over the bound, %"
RATIOS = {"iteration": "total", "all-to-all": "all_to_all"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model on a number of ranks."""

    model: str  # a name among the models
    ranks: int  # of the topologies, of degree 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim(PaperValue):
    """A number that the paper prints."""

    # "iteration" and "all-to-all" for how many times as long they take on one network as on ours;
    # "share of all-to-all, %" for their share of an iteration; "most over the bound, %" for the
    # iterations of all cases
    what: Annotated[str, among((*RATIOS, SHARE, OVER_BOUND))]
    of: Annotated[str, among(NETWORKS)]
    # model, ranks: the case; empty and 0 for all
    model: str
    ranks: int

    def ours(self, runs: Mapping[tuple[str, int], Mapping[str, Run]]) -> float | None:
        """Our number; None where no such case was run."""
        cases = [
            here
            for case, here in runs.items()
            if case == (self.model, self.ranks) or self.what == OVER_BOUND
        ]
        found = [here for here in cases if self.of in here]
        if not found:
            return None
        if self.what == OVER_BOUND:
            return max(_over_bound(here, self.of) for here in found)
        mine = found[0][self.of].iteration
        if self.what == SHARE:
            return 100 * float(mine.all_to_all / mine.total)
        of = RATIOS[self.what]
        return float(getattr(mine, of) / getattr(found[0][OURS].iteration, of))


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """The figure."""

    machine: Machine  # constants of the cost model
    accelerator: str  # a name in ``configs/accelerator``
    models: Mapping[str, SwitchTransformer]  # by name
    cases: tuple[Case, ...]  # in the order of the figure
    global_samples: int  # sequences of a batch, shared out to the ranks
    # source_tokens, target_tokens: of a sequence: those the encoder and the decoder read
    source_tokens: Count
    target_tokens: Count
    value_bytes: Count  # of an activation or gradient
    buckets: tuple[Count, ...]  # capacities in bytes, of which the best is taken for every network
    order: str  # of the collectives that wait, see ``timeline.iteration``
    claims: tuple[Claim, ...]  # numbers that the paper prints

    def __post_init__(self) -> None:
        if not self.cases:
            raise ConfigError("cases must name at least one")
        for case in self.cases:
            one_of("model of a case", case.model, tuple(self.models))
            at_least("ranks of a case", case.ranks, 9)
            for what, total in (
                ("global_samples", self.global_samples),
                (f"the experts of {case.model}", self.models[case.model].experts),
            ):
                if total % case.ranks:
                    raise ConfigError(
                        f"{what} must divide evenly among ranks, but {case.ranks} ranks do not "
                        f"divide {total}"
                    )


class Run(NamedTuple):
    """An iteration on a network, with the best capacity of buckets."""

    topology: str  # that was chosen
    bucket: int  # the capacity in bytes
    iteration: Iteration  # as run
    other: float  # seconds of the iteration if all-to-alls went first


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each claim, then one for each case and network."""
    runs = {}
    for case in config.cases:
        runs[case.model, case.ranks] = run_case(config, case)
        tell({"model": case.model, "ranks": case.ranks, "networks": len(NETWORKS)})
    rows: list[dict[str, Any]] = Rows()
    for claim in config.claims:
        where = f"{claim.model}, {claim.ranks} ranks" if claim.ranks else "all"
        beside = f"{claim.of} / {OURS}" if claim.what in RATIOS else claim.of
        rows.append({"claim": f"{claim.what}: {beside}, {where}", **claim.beside(claim.ours(runs))})
    rows += [
        _row(case, name, here) for case, here in runs.items() for name in NETWORKS if name in here
    ]
    title = "Fig. 3.9: iterations of Switch Transformers, expert parallel, degree 4"
    return config.publish(title, rows, figure=_draw(runs))


def run_case(config: Config, case: Case) -> dict[str, Run]:
    """By network; ours is the fastest of the finder's topologies."""
    model = config.models[case.model]
    work = operations(
        model.blocks(config.source_tokens, config.target_tokens),
        load_accelerator(config.accelerator),
        samples=config.global_samples // case.ranks,
        value_bytes=config.value_bytes,
    )
    others = baselines(case.ranks, config.machine)
    return {
        OURS: fastest_found(config, work, case.ranks),
        **{name: _best(config, work, network) for name, network in others.items()},
    }


def fastest_found(config: Config, work: Sequence[Operation], ranks: int) -> Run:
    """On the topology with the fastest iteration of all that the finder keeps.

    Flows, which take long, are computed only as long as distances leave hope.
    """
    networks = found_networks(ranks, config.machine)
    hoped = [_best(config, work, network.hoped()).iteration.total for network in networks]
    best: Run | None = None
    # The hoped rate is an upper bound, so an iteration by it is a lower one: as soon as it is not
    # below the best certified one, neither is any that follows.
    for i in sorted(range(len(networks)), key=hoped.__getitem__):
        if best is not None and hoped[i] >= best.iteration.total:
            break
        run = _best(config, work, networks[i].certified())
        if best is None or run.iteration.total < best.iteration.total:
            best = run
    if best is None:
        raise ConfigError(f"the finder has no topology of {ranks} ranks")
    return best


def _best(config: Config, work: Sequence[Operation], network: Network) -> Run:
    bucket, best = best_bucket(work, network.times, config.buckets, config.order)
    _, other = best_bucket(work, network.times, config.buckets, EXCHANGES_FIRST)
    return Run(network.topology, bucket, best, float(other.total))


def _over_bound(here: Mapping[str, Run], name: str) -> float:
    return 100 * float(here[name].iteration.total / here[BOUND].iteration.total - 1)


def _row(case: tuple[str, int], name: str, here: Mapping[str, Run]) -> dict[str, Any]:
    model, ranks = case
    topology, bucket, found, other = here[name]
    return {
        "model": model,
        "N": ranks,
        "network": name,
        "topology": topology,
        "bucket": format_bytes(bucket),
        "iteration ms": 1e3 * float(found.total),
        "compute %": 100 * float(found.compute / found.total),
        "exposed all_reduce %": 100 * float(found.all_reduce / found.total),
        "all-to-all %": 100 * float(found.all_to_all / found.total),
        "hidden all_reduce ms": 1e3 * float(found.hidden),
        "over bound %": _over_bound(here, name),
        "all-to-all first ms": 1e3 * other,
    }


def _draw(runs: Mapping[tuple[str, int], Mapping[str, Run]]) -> Figure:
    bars = {}
    for (model, ranks), here in runs.items():
        unit = here[OURS].iteration.total
        bars[f"{model}\n{ranks} ranks"] = {
            name: dict(zip(PARTS, (float(part / unit) for part in _parts(here[name])), strict=True))
            for name in NETWORKS
            if name in here
        }
    return stacked_bars(bars, parts=PARTS, label="time of an iteration over ours")


def _parts(here: Run):
    found = here.iteration
    return found.compute, found.all_reduce, found.all_to_all
