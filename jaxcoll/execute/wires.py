"""Wires: the form in which floats are sent between ranks, for ``wire_dtype=``.

A wire encodes rows of floats into a message, decodes messages that arrive, and bounds the
difference between the two. Three wires are defined here, and a program may bring its own
(``Wire``):

    ================ ======================= ======================= ===============================
    wire             bytes per element       largest error           NaN and Inf
    ================ ======================= ======================= ===============================
    ``Cast``         2                       half a unit in the last each by itself; values beyond
                                             place of the dtype      the dtype's range become Inf
    ``Scaled``       1 + 4 / block           ``|x| / 16`` (e4m3fn)   all of the block become NaN
    ``Int8``         1 + 4 / block           ``max |block| / 126``   all of the block become NaN
    ================ ======================= ======================= ===============================

Neighbours in a row form blocks that share a scale, sent after them (8 bytes instead of 4 for
float64). One NaN or Inf in a block makes all its values NaN at the receiver, so code that looks for
values that are not finite, such as loss scaling, never misses any.

Numbers below the smallest normal number of their dtype may count as zero, as in XLA on CPUs.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcoll.errors import CollectiveError
from jaxcoll.kinds import kind_of
from jaxcoll.numerics import checks

__all__ = ["Cast", "Int8", "Scaled", "Wire", "wire_of"]

BLOCK = 128
METHODS = ("encode", "decode", "folded")


class Wire(abc.ABC):
    """The form in which rows of floats are sent.

    A wire of your own is an object with the methods ``encode``, ``decode`` and ``folded``; a class
    derived from this one needs only the first two. All take and return arrays while a program is
    being traced. A wire whose results depend on arrays that it holds, such as a key, must be a
    pytree of them, or JAX cannot see them.

    Attributes:
        is_random: whether results depend on random bits, which training renews in every step.
    """

    is_random = False

    @abc.abstractmethod
    def encode(self, x: jax.Array) -> jax.Array:
        """The message for rows of float32, or of float64 if the operand is float64.

        Args:
            x: shape (..., size); every row is encoded independently.

        Returns:
            Shape (..., length), of any dtype. Integers are safest: XLA may widen small floats.
        """

    @abc.abstractmethod
    def decode(self, sent: jax.Array, size: int, dtype: Any) -> jax.Array:
        """The decoded rows, of shape (..., size) and of the dtype in which they were encoded.

        It must give the same bits on all ranks, because each of them decodes the sums of all.
        """

    def folded(self, data: Any) -> Wire:
        """The wire with random bits of its own for an integer, which may be traced.

        It is called with the rank, with the number of a leaf or bucket, and with the step.
        """
        del data
        return self

    def nbytes(self, size: int, dtype: Any = jnp.float32) -> int:
        """Number of bytes that are sent for a row of ``size`` elements."""
        out = jax.eval_shape(self.encode, jax.ShapeDtypeStruct((1, size), wide_of(dtype)))
        return out.size * out.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Cast(Wire):
    """Floats of 16 bits, rounded to nearest.

    Attributes:
        dtype: bfloat16 or float16.

    Raises:
        CollectiveError: the dtype is another one.
    """

    dtype: Any = jnp.bfloat16

    def __post_init__(self) -> None:
        if _dtype_of(self.dtype) not in (jnp.bfloat16, jnp.float16):
            raise CollectiveError(
                f"Cast sends bfloat16 or float16, got {checks.shown(self.dtype)}; for floats of "
                "8 bits take Scaled, which gives each block a scale"
            )

    def encode(self, x: jax.Array) -> jax.Array:
        """Shape (..., size), the bits as uint16."""
        return lax.bitcast_convert_type(x.astype(self.dtype), jnp.uint16)

    def decode(self, sent: jax.Array, size: int, dtype: Any) -> jax.Array:
        """The values converted to ``dtype``; ``size`` is that of the rows."""
        del size
        return lax.bitcast_convert_type(sent, jnp.dtype(self.dtype)).astype(dtype)

    def bound(self, x: jax.Array) -> jax.Array:
        """The largest error of each finite element within the range of the dtype.

        It is ``|x| * eps / 2``, or the smallest normal number of the dtype if that is larger.
        """
        kind = jnp.finfo(self.dtype)
        return jnp.maximum(abs(x) * (float(kind.eps) / 2), float(kind.tiny))


class _Blocks(Wire):
    """Blocks of ``block`` elements in 8 bits each, followed by a scale for each block."""

    block: int

    @abc.abstractmethod
    def _scale(self, most: jax.Array) -> jax.Array:
        """The scale of blocks from their largest magnitudes, above 0 if those are."""

    @abc.abstractmethod
    def _codes(self, scaled: jax.Array) -> jax.Array:
        """Elements divided by the scale of their block, in 8 bits each."""

    @abc.abstractmethod
    def _values(self, codes: jax.Array, dtype: Any) -> jax.Array:
        """The rounded values that codes stand for."""

    def encode(self, x: jax.Array) -> jax.Array:
        """Shape (..., size + bytes of the scales), uint8."""
        size, lead = x.shape[-1], x.shape[:-1]
        most = self._most(x)
        # A scale must be a normal number, or XLA on CPUs treats it as zero and divides by it.
        scale = jnp.maximum(self._scale(most), jnp.finfo(x.dtype).tiny)
        scale = jnp.where(jnp.isfinite(most), scale, jnp.nan)
        scaled = self._in_blocks(x) / scale[..., None]
        # The codes of a block that is NaN anyway must be codes that all backends can make.
        scaled = jnp.where(jnp.isnan(scaled), 0, scaled)
        codes = self._codes(scaled.reshape(*lead, -1))[..., :size]
        parts = [lax.bitcast_convert_type(part, jnp.uint8) for part in (codes, scale)]
        return lax.concatenate([parts[0], parts[1].reshape(*lead, -1)], len(lead))

    def decode(self, sent: jax.Array, size: int, dtype: Any) -> jax.Array:
        """Codes times scales, cut to the range of finite numbers."""
        lead, width = sent.shape[:-1], np.dtype(dtype).itemsize
        scale = lax.bitcast_convert_type(sent[..., size:].reshape(*lead, -1, width), dtype)
        codes = self._in_blocks(self._values(sent[..., :size], dtype))
        most = jnp.finfo(dtype).max
        # Rounded up, the largest numbers would become Inf.
        values = jnp.clip(codes * scale[..., None], -most, most)
        return values.reshape(*lead, -1)[..., :size]

    def _in_blocks(self, x: jax.Array) -> jax.Array:
        """Shape (..., blocks, elements), padded with zeros."""
        pad = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % self.block)]
        return jnp.pad(x, pad).reshape(*x.shape[:-1], -1, self.block)

    def _most(self, x: jax.Array) -> jax.Array:
        """The largest magnitude of each block: NaN if one of its elements is NaN."""
        return jnp.max(abs(self._in_blocks(x)), axis=-1)

    def _per_element(self, blocks: jax.Array, size: int) -> jax.Array:
        return jnp.repeat(blocks, self.block, axis=-1)[..., :size]


@dataclasses.dataclass(frozen=True)
class Scaled(_Blocks):
    """Floats of 8 bits, rounded to nearest, times a power of two for each block.

    The scale is the least power of two that brings the block into the range of the dtype. So a
    value that fits into the bits of the dtype is sent exactly, and values that have been on such a
    wire before do not change (cf. "OCP Microscaling Formats (MX)", 2023, Sec. 5, whose blocks have
    32 elements).

    Attributes:
        dtype: float8_e4m3fn or float8_e5m2.
        block: number of elements that share a scale of 4 bytes.

    Raises:
        CollectiveError: the dtype is another one, or a block has less than one element.
    """

    dtype: Any = jnp.float8_e4m3fn
    block: int = BLOCK

    def __post_init__(self) -> None:
        if _dtype_of(self.dtype) not in (jnp.float8_e4m3fn, jnp.float8_e5m2):
            raise CollectiveError(
                f"Scaled sends float8_e4m3fn or float8_e5m2, got {checks.shown(self.dtype)}"
            )
        checks.integer(self.block, "block", CollectiveError, least=1)

    def _scale(self, most: jax.Array) -> jax.Array:
        # Fraction and exponent apart: a quotient below the smallest normal number is zero to XLA on
        # CPUs, and the scale would be 1, with which the whole block vanishes.
        largest, place = math.frexp(float(jnp.finfo(self.dtype).max))
        fraction, exponent = jnp.frexp(most)
        power = exponent - place + (fraction > largest)
        return jnp.ldexp(jnp.ones_like(most), jnp.maximum(power, jnp.finfo(most.dtype).minexp))

    def _codes(self, scaled: jax.Array) -> jax.Array:
        return scaled.astype(self.dtype)

    def _values(self, codes: jax.Array, dtype: Any) -> jax.Array:
        return lax.bitcast_convert_type(codes, jnp.dtype(self.dtype)).astype(dtype)

    def bound(self, x: jax.Array) -> jax.Array:
        """The largest error of each element of rows (..., size) whose block is finite.

        It is ``|x| / 16`` for float8_e4m3fn and ``|x| / 8`` for float8_e5m2, or a fraction of the
        largest magnitude in the block if that is larger: 2**-9 / 448 and 2**-16 / 57344 of it.
        """
        kind = jnp.finfo(self.dtype)
        step = float(kind.smallest_subnormal) / float(kind.max)
        least = jnp.maximum(self._most(x) * step, jnp.finfo(x.dtype).tiny)
        return jnp.maximum(abs(x) * (float(kind.eps) / 2), self._per_element(least, x.shape[-1]))


@dataclasses.dataclass(frozen=True)
class Int8(_Blocks):
    """Integers from -127 to 127, rounded up or down by random bits, times a scale for each block.

    The scale is a 127th of the largest magnitude in the block. A value between two integers becomes
    either, with a probability that makes its expectation the value itself to within 2**-16 of the
    scale (Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and
    Encoding", NeurIPS 2017, Sec. 3.1), so errors of many ranks cancel in a sum. Each rank folds its
    index along the axes of the call into the key and draws its own bits; ranks that differ along
    other axes draw the same bits, unless their seeds differ.

    The same key draws the same bits, so give another key in every step. ``jc.optax`` counts steps
    and does this by itself.

    Attributes:
        seed: an integer of at least 0 and below 2**32, or a key of ``jax.random``; both may be
            traced. For a Python integer no array is made before an operand is encoded, so such a
            wire may be made in a file of settings, before ``jax.distributed.initialize``.
        block: number of elements that share a scale of 4 bytes.

    Raises:
        CollectiveError: the seed is neither, or a block has less than one element.
    """

    seed: Any
    block: int = BLOCK
    is_random = True

    def __post_init__(self) -> None:
        checks.integer(self.block, "block", CollectiveError, least=1)
        checks.put(self, seed=_seed_of(self.seed))

    @property
    def key(self) -> jax.Array:
        """The key of ``jax.random``."""
        return jax.random.key(self.seed) if isinstance(self.seed, int) else self.seed

    def folded(self, data: Any) -> Int8:
        """The wire with a key made from this one and an integer."""
        return Int8(jax.random.fold_in(self.key, data), self.block)

    def _scale(self, most: jax.Array) -> jax.Array:
        return most / 127

    def _codes(self, scaled: jax.Array) -> jax.Array:
        # Thresholds are in the middle of their steps, so that integers do not change and means are
        # kept.
        bits = jax.random.bits(self.key, scaled.shape, jnp.uint16).astype(scaled.dtype)
        rounded = jnp.floor(scaled + (bits + 0.5) / 2**16)
        return jnp.clip(rounded, -127, 127).astype(jnp.int8)

    def _values(self, codes: jax.Array, dtype: Any) -> jax.Array:
        return lax.bitcast_convert_type(codes, jnp.int8).astype(dtype)

    def bound(self, x: jax.Array) -> jax.Array:
        """The largest error of each element of rows (..., size) whose block is finite.

        It is a 126th of the largest magnitude in the block: one step of the scale, plus the
        rounding of float32.
        """
        step = jnp.maximum(self._most(x) / 126, jnp.finfo(x.dtype).tiny)
        return self._per_element(step, x.shape[-1])


def _flattened(wire: Int8) -> tuple[tuple, tuple]:
    """An integer is a static part of the program, a key is an operand of it."""
    is_known = isinstance(wire.seed, int)
    return () if is_known else (wire.seed,), (wire.seed if is_known else None, wire.block)


def _unflattened(known: tuple, children: Sequence[Any]) -> Int8:
    # Not by the constructor, because JAX puts placeholders in the place of the key.
    wire = object.__new__(Int8)
    checks.put(wire, seed=children[0] if children else known[0], block=known[1])
    return wire


jax.tree_util.register_pytree_node(Int8, _flattened, _unflattened)


def _seed_of(seed: Any) -> Any:
    """A seed as a Python integer, or as a key."""
    dtype, shape = getattr(seed, "dtype", None), getattr(seed, "shape", ())
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ():
        return seed
    if dtype == jnp.uint32 and shape == (2,):  # a key of jax.random.PRNGKey
        return jax.random.wrap_key_data(seed, impl="threefry2x32")
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jnp.integer) and shape == ():
        return jax.random.key(seed)
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool):
        # Without 64-bit types keys have only the lowest 32 bits of a seed.
        return checks.integer(seed, "seed", CollectiveError, least=0, most=2**32 - 1)
    raise CollectiveError(
        "Int8 rounds by random bits that are drawn from a seed: an integer or a key of jax.random, "
        f"got {checks.shown(seed)}"
    )


def _dtype_of(value: Any) -> Any:
    """The dtype that a value names; ``None`` if it names none."""
    # NumPy reads None as float64, and parses texts.
    try:
        return None if value is None else jnp.dtype(value)
    except (TypeError, ValueError, SyntaxError):
        return None


def wide_of(dtype: Any) -> Any:
    """The dtype in which a wire gets floats: float64 for float64, otherwise float32."""
    return jnp.float64 if jnp.finfo(dtype).bits > 32 else jnp.float32


def wire_halves(kind: str) -> tuple[str, ...]:
    """The collectives of encoded bytes that one is made of (``encoded``); none if it has no wire.

    Args:
        kind: the name of a kind.
    """
    traits = kind_of(kind)
    if traits.sums_for_all:
        return "all_to_all", "all_gather"
    if traits.adds:
        return ("all_to_all",)
    return (kind,) if traits.copies or traits.is_pairwise else ()


def wire_of(wire_dtype: Any) -> Wire:
    """The wire that ``wire_dtype=`` names.

    Args:
        wire_dtype: a wire, or a dtype: bfloat16 and float16 stand for a cast, float8_e4m3fn and
            float8_e5m2 for a scale for each block of 128.

    Raises:
        CollectiveError: it is something else, or int8 without a seed.
    """
    if all(callable(getattr(wire_dtype, name, None)) for name in METHODS):
        if not isinstance(wire_dtype, type):
            return wire_dtype
        raise CollectiveError(
            f"wire_dtype= was the class {wire_dtype.__name__}; give one of its instances"
        )
    dtype = _dtype_of(wire_dtype)
    if dtype in (jnp.bfloat16, jnp.float16):
        return Cast(dtype)
    if dtype in (jnp.float8_e4m3fn, jnp.float8_e5m2):
        return Scaled(dtype)
    if dtype == jnp.int8:
        raise CollectiveError(
            "wire_dtype=int8 rounds by random bits, and needs a seed for them: "
            "wire_dtype=jc.execute.wires.Int8(seed)"
        )
    raise CollectiveError(
        "wire_dtype= must be bfloat16, float16, float8_e4m3fn, float8_e5m2, "
        "jc.execute.wires.Int8(seed) or an object with the methods "
        f"{', '.join(METHODS)}; got {checks.shown(wire_dtype)}"
    )
