"""Shapes of layers: their parameters, and the matrix products of their three passes.

Every product is that of one sample. A layer with weights W maps x to x W: its forward pass
multiplies x by W, the gradient of its input is that of its output times W transposed, and the
gradient of W is x transposed times that of its output.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, NamedTuple


class Product(NamedTuple):
    """An m x k matrix times a k x n matrix."""

    m: int
    k: int
    n: int

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.k * self.n


class Shape(abc.ABC):
    """A kind of layer: a frozen dataclass whose fields are integers of at least 1.

    Attributes:
        key: its name in the tables.
        least: fields that may be smaller than 1, and how small.
    """

    key: ClassVar[str]
    least: ClassVar[dict[str, int]] = {}

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value, least = getattr(self, field.name), self.least.get(field.name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(
                    f"{field.name} must be an integer of at least {least}, got {value!r}"
                )

    @property
    @abc.abstractmethod
    def parameters(self) -> int:
        """Number of weights."""

    @property
    @abc.abstractmethod
    def outputs(self) -> int:
        """Values that leave the layer for one sample."""

    @property
    @abc.abstractmethod
    def forward(self) -> tuple[Product, ...]:
        """Products of the forward pass."""

    @property
    @abc.abstractmethod
    def input_gradient(self) -> tuple[Product, ...]:
        """Products that give the gradient of the layer's input."""

    @property
    @abc.abstractmethod
    def weight_gradient(self) -> tuple[Product, ...]:
        """Products that give the gradient of the weights."""


@dataclasses.dataclass(frozen=True)
class Conv(Shape):
    """A convolution, as the product of its unrolled windows with its filters.

    The gradient of the input is a transposed convolution (MultiTree, Sec. VI-C): a convolution of
    the output's gradient, spread out by the stride, with as many windows as the input has pixels.
    """

    # height, width, channels: of the input
    height: int
    width: int
    channels: int
    # kernel_height, kernel_width: of a filter
    kernel_height: int
    kernel_width: int
    # stride, padding: the same both ways
    stride: int
    padding: int
    filters: int  # channels of the output

    key: ClassVar[str] = "conv"
    least: ClassVar[dict[str, int]] = {"padding": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in ("height", "width"):
            padded = getattr(self, side) + 2 * self.padding
            if getattr(self, f"kernel_{side}") > padded:
                raise ValueError(f"the kernel's {side} is more than the {padded} of the input")

    @property
    def pixels(self) -> int:
        """Pixels of the output."""
        height = (self.height + 2 * self.padding - self.kernel_height) // self.stride + 1
        width = (self.width + 2 * self.padding - self.kernel_width) // self.stride + 1
        return height * width

    @property
    def window(self) -> int:
        """Pixels of a filter."""
        return self.kernel_height * self.kernel_width

    @property
    def parameters(self) -> int:
        return self.window * self.channels * self.filters

    @property
    def outputs(self) -> int:
        return self.pixels * self.filters

    @property
    def forward(self) -> tuple[Product, ...]:
        """Windows by filters."""
        return (Product(self.pixels, self.window * self.channels, self.filters),)

    @property
    def input_gradient(self) -> tuple[Product, ...]:
        """The transposed convolution."""
        return (Product(self.height * self.width, self.window * self.filters, self.channels),)

    @property
    def weight_gradient(self) -> tuple[Product, ...]:
        """Weights of a filter by filters, summed over pixels."""
        return (Product(self.window * self.channels, self.pixels, self.filters),)


class _Dense(Shape):
    """Layers made of products with weights, and of products of activations with each other."""

    @property
    @abc.abstractmethod
    def weighted(self) -> tuple[Product, ...]:
        """Forward products whose right factor is weights."""

    @property
    def unweighted(self) -> tuple[Product, ...]:
        """Forward products of activations with each other."""
        return ()

    @property
    def parameters(self) -> int:
        return sum(k * n for _, k, n in self.weighted)

    @property
    def forward(self) -> tuple[Product, ...]:
        return self.weighted + self.unweighted

    @property
    def input_gradient(self) -> tuple[Product, ...]:
        """One for a product with weights, two where both factors are activations."""
        left = tuple(Product(m, n, k) for m, k, n in self.weighted + self.unweighted)
        return left + tuple(Product(k, m, n) for m, k, n in self.unweighted)

    @property
    def weight_gradient(self) -> tuple[Product, ...]:
        """One for each product with weights."""
        return tuple(Product(k, m, n) for m, k, n in self.weighted)


@dataclasses.dataclass(frozen=True)
class Dense(_Dense):
    """A matrix product with weights: ``rows`` (tokens, say) of ``inputs`` values each."""

    rows: int
    inputs: int
    values: int

    key: ClassVar[str] = "dense"

    @property
    def outputs(self) -> int:
        return self.rows * self.values

    @property
    def weighted(self) -> tuple[Product, ...]:
        return (Product(self.rows, self.inputs, self.values),)


class _OfTokens(_Dense):
    """Layers that give ``hidden`` values for each of ``tokens``."""

    tokens: int
    hidden: int

    @property
    def outputs(self) -> int:
        return self.tokens * self.hidden


@dataclasses.dataclass(frozen=True)
class Attention(_OfTokens):
    """Multi-head attention of ``tokens`` with as many; heads change no count.

    Queries, keys, values and the projection of the result, each hidden x hidden; scores and the
    weighted sum of values are products without weights.
    """

    tokens: int
    hidden: int

    key: ClassVar[str] = "attention"

    @property
    def weighted(self) -> tuple[Product, ...]:
        """Queries, keys and values in one product, and the projection."""
        return (
            Product(self.tokens, self.hidden, 3 * self.hidden),
            Product(self.tokens, self.hidden, self.hidden),
        )

    @property
    def unweighted(self) -> tuple[Product, ...]:
        """Scores, and the weighted sum."""
        return (
            Product(self.tokens, self.hidden, self.tokens),
            Product(self.tokens, self.tokens, self.hidden),
        )


@dataclasses.dataclass(frozen=True)
class FeedForward(_OfTokens):
    """Two products with weights: to ``inner`` values a token and back to ``hidden``."""

    tokens: int
    hidden: int
    inner: int

    key: ClassVar[str] = "feed_forward"

    @property
    def weighted(self) -> tuple[Product, ...]:
        return (
            Product(self.tokens, self.hidden, self.inner),
            Product(self.tokens, self.inner, self.hidden),
        )


@dataclasses.dataclass(frozen=True)
class Lstm(_OfTokens):
    """An LSTM over ``tokens``: four gates of ``hidden`` values, from inputs and the last state."""

    tokens: int
    inputs: int
    hidden: int

    key: ClassVar[str] = "lstm"

    @property
    def weighted(self) -> tuple[Product, ...]:
        return (Product(self.tokens, self.inputs + self.hidden, 4 * self.hidden),)


@dataclasses.dataclass(frozen=True)
class Embedding(_Dense):
    """A table of ``rows`` vectors, of which ``tokens`` are looked up: bytes, and no products.

    Its gradient is exchanged whole, as a dense array.
    """

    tokens: int
    rows: int
    width: int

    key: ClassVar[str] = "embedding"

    @property
    def parameters(self) -> int:
        return self.rows * self.width

    @property
    def outputs(self) -> int:
        return self.tokens * self.width

    @property
    def weighted(self) -> tuple[Product, ...]:
        return ()  # a look-up multiplies nothing


SHAPES: dict[str, type[Shape]] = {
    shape.key: shape for shape in (Conv, Dense, Attention, FeedForward, Lstm, Embedding)
}
