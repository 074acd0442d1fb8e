"""Switch Transformers under expert parallelism: the operations of a rank's iteration.

Fedus, Zoph and Shazeer, "Switch Transformers" (JMLR 2022): an encoder and a decoder in which some
feed-forward layers are a router and experts, one expert per token. Experts are sharded over all
ranks, everything else is replicated (dissertation, App. A.1.4).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from experiments.config import at_least
from experiments.direct_connect.training.timeline import Compute, Exchange, Gradient, Operation
from experiments.errors import ConfigError
from experiments.workloads import Accelerator
from experiments.workloads.shapes import Product


class Block(NamedTuple):
    """A part of the network, for one sample.

    Attributes:
        products: of its forward pass.
        parameters: weights that every rank has a copy of.
        exchanged: values that an all-to-all moves before it and another one after it; 0 for all
            but experts.
    """

    products: tuple[Product, ...]
    parameters: int
    exchanged: int = 0


@dataclasses.dataclass(frozen=True)
class SwitchTransformer:
    """The sizes of a model; biases and normalization are left out.

    Attributes:
        layers: of the encoder, and as many of the decoder.
        hidden: values per token between layers.
        inner: values per token inside a feed-forward layer.
        gated: whether feed-forward layers have a gate, a third matrix.
        heads, head_size: of attention.
        experts: per sparse layer.
        sparse_every: one of so many feed-forward layers is sparse.
        vocabulary: rows of the embedding, which the last product shares.
    """

    layers: int
    hidden: int
    inner: int
    gated: bool
    heads: int
    head_size: int
    experts: int
    sparse_every: int
    vocabulary: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name != "gated":
                at_least(field.name, getattr(self, field.name), 1)

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
        samples: of the rank.
        value_bytes: bytes of an activation or gradient.

    Raises:
        ConfigError: samples or bytes below 1, or no blocks.
    """
    at_least("samples", samples, 1)
    at_least("value_bytes", value_bytes, 1)
    if not blocks:
        raise ConfigError("a model needs blocks")
    found: list[Operation] = []
    for block in blocks:
        forward = Compute(accelerator.seconds(block.products, samples))
        found += _around(block, forward, samples * value_bytes)
    for block in reversed(blocks):
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
