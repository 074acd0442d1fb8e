"""Sums that do not depend on how the addends are divided among ranks: ``order="invariant"``.

Floats added in another order are rounded differently, and another number of ranks means another
order. So addends are converted to integers, whose sums are exact in every order, and the total is
rounded once. The method is related to Demmel and Nguyen, "Parallel Reproducible Summation", IEEE
Trans. Comput. 2015, Sec. 3, and to Ahrens, Demmel and Nguyen, "Algorithms for Efficient
Reproducible Floating Point Summation", ACM TOMS 2020, whose bins are fixed; here the largest
exponent is computed first, so that few bits suffice. For each element of the result::

    E = largest exponent of an addend, by a maximum over the ranks     1 byte on the wire
    integer of an addend = its significand in units of 2 ** (E - 35)   1 or 2 words
    total = sum of all integers, by a sum over the ranks               4 or 8 bytes
    result = total, rounded to nearest, ties to even

For float32 an integer has 35 bits, in two words of 32 that leave room for the sums; for float16 and
bfloat16 it has 20, in one word, for at most 1,024 addends; for float64 it has 99, in two 64-bit
words. An addend without bits below the unit is exact, so a sum of addends whose exponents differ by
at most 11 (float32) is the exact sum, rounded once. Any other addend is rounded to a multiple of
the unit, which changes it by at most half a unit. So for G addends x of float32::

    |error| <= G * 2**-35 * max|x| + 2**-24 * |sum|

For float16 and bfloat16 it is at most ``G * 2**-20 * max|x|`` plus half a unit in the last place of
the sum.

The alternative is a binary tree over the positions of all addends. It sends no more than a plain
sum does, but works only if every rank holds a whole subtree, hence for powers of two, and only with
schedules that add along that tree. Integers give the same sum for any number of ranks, any division
among them and any schedule, at 2.25 times the bytes of float32 and 2.5 times those of bfloat16.

- NaN in an addend, or Inf of both signs, gives NaN; Inf of one sign gives that Inf.
- A sum beyond the range of the dtype is Inf with its sign. Only the sum counts: 3e38 + 3e38 - 3e38
  is 3e38, in any order.
- Subnormal numbers keep their values, in addends and results, even where XLA otherwise treats them
  as zero.
- A sum of zero is +0, even if all addends are -0.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcoll.errors import CollectiveError


@dataclasses.dataclass(frozen=True)
class Form:
    """The conversion of floats of some dtypes to integers, and of their sums back to floats.

    All arithmetic is on words, which are integers as wide as a float that has all values of the
    dtypes.

    Attributes:
        float_dtype: that float.
        word: the dtype of the words.
        code: the dtype of exponents on the wire.
        high: bits of an addend in its first word.
        low: bits of an addend in its second word; 0 if it has only one.
        most: the most addends.
    """

    float_dtype: Any
    word: Any
    code: Any
    high: int
    low: int
    most: int

    @property
    def digits(self) -> int:
        """Bits of a significand."""
        return jnp.finfo(self.float_dtype).nmant + 1

    @property
    def extra(self) -> int:
        """Bits of an integer below the last one of the largest addend; may be negative."""
        return self.high + self.low - self.digits

    @property
    def infinite(self) -> int:
        """The exponent of NaN and Inf."""
        return 2 ** jnp.finfo(self.float_dtype).nexp - 1

    # ------------------------------------------------------------------ addends to words

    def codes(self, x: jax.Array) -> jax.Array:
        """The biased exponent of each element, at least that of the least normal number."""
        return jnp.maximum(self._fields(x)[1], 1).astype(self.code)

    def words(self, x: jax.Array, largest: jax.Array) -> jax.Array:
        """Shape (words, ...): elements in units given by ``largest``, the maximum of codes."""
        is_negative, exponent, fraction = self._fields(x)
        largest = largest.astype(self.word)
        hidden = jnp.where(exponent > 0, 1 << (self.digits - 1), 0).astype(self.word)
        parts = self._shifted(hidden + fraction, largest - jnp.maximum(exponent, 1))
        parts = [jnp.where(is_negative, -part, part) for part in parts]
        # For addends that are not finite, words count those of either sign; NaN counts as both.
        is_nan = (exponent == self.infinite) & (fraction > 0)
        is_inf = (exponent == self.infinite) & (fraction == 0)
        up = (is_nan | (is_inf & ~is_negative)).astype(self.word)
        down = (is_nan | (is_inf & is_negative)).astype(self.word)
        counts = [up, down] if self.low else [up + down * (2 * self.most)]
        is_lost = largest == self.infinite
        chosen = [
            jnp.where(is_lost, count, part) for count, part in zip(counts, parts, strict=True)
        ]
        return jnp.stack(chosen)

    def _fields(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Sign, biased exponent and fraction of floats."""
        bits = lax.bitcast_convert_type(self._widened(x), self.word)
        fraction = bits & ((1 << (self.digits - 1)) - 1)
        return bits < 0, (bits >> (self.digits - 1)) & self.infinite, fraction

    def _widened(self, x: jax.Array) -> jax.Array:
        if x.dtype == jnp.bfloat16:  # from its bits: XLA on CPUs treats subnormal numbers as zero
            wide = lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32) << 16
            return lax.bitcast_convert_type(wide, jnp.float32)
        return x.astype(self.float_dtype)

    def _shifted(self, significand: jax.Array, below: jax.Array) -> list[jax.Array]:
        """Significands, in words, of numbers ``below`` binary places under the largest."""
        # Shifts by the width of a word or more are not defined.
        widest = jnp.iinfo(self.word).bits - 1
        one = jnp.ones((), self.word)
        dropped = jnp.clip(below - self.extra, 0, self.digits + 2)
        # Round to the nearest multiple of the unit; ties go away from zero.
        kept = (significand + ((one << dropped) >> 1)) >> dropped << dropped
        place = jnp.minimum(below + (self.low - self.extra), widest)
        first = kept >> place if self.low else jnp.zeros_like(kept)
        rest = kept - (first << place) if self.low else kept
        up, down = jnp.clip(self.extra - below, 0, widest), jnp.clip(below - self.extra, 0, widest)
        return [first, rest << up >> down] if self.low else [rest << up >> down]

    def carried(self, words: jax.Array) -> jax.Array:
        """Equal sums with a second word within its bits, so that as many can be added again."""
        if not self.low:
            return words
        high, low = words
        return jnp.stack([high + (low >> self.low), low & ((1 << self.low) - 1)])

    # ------------------------------------------------------------------ words to sums

    def total(self, words: jax.Array, largest: jax.Array, dtype: Any) -> jax.Array:
        """The sums in ``dtype``, rounded to nearest, ties to even."""
        largest = largest.astype(self.word)
        is_lost = largest == self.infinite
        counts = jnp.where(is_lost, words, 0)
        sums = jnp.where(is_lost, 0, words)
        if self.low:
            up, down = counts
            high, low = self.carried(sums)
        else:
            up, down = counts[0] % (2 * self.most), counts[0] // (2 * self.most)
            high, low = sums[0] >> self._half, sums[0] & ((1 << self._half) - 1)
        found = self._rounded(high, low, largest, dtype)
        infinite = jnp.where(up > 0, jnp.where(down > 0, jnp.nan, jnp.inf), -jnp.inf).astype(dtype)
        return jnp.where(is_lost, infinite, found)

    @property
    def _half(self) -> int:
        """Bits of the second word when sums are rounded."""
        return self.low or jnp.iinfo(self.word).bits * 5 // 8

    def _rounded(self, high: jax.Array, low: jax.Array, largest: jax.Array, dtype) -> jax.Array:
        """The float high * 2**half + low, with 0 <= low < 2**half, in units of ``largest``."""
        kind, half = jnp.finfo(dtype), self._half
        digits = kind.nmant + 1
        # The magnitude, also as a pair of words.
        is_negative = high < 0
        borrowed = jnp.where(low > 0, -high - 1, -high), jnp.where(low > 0, (1 << half) - low, 0)
        high = jnp.where(is_negative, borrowed[0], high)
        low = jnp.where(is_negative, borrowed[1], low)
        width = jnp.iinfo(self.word).bits
        length = jnp.where(high > 0, width + half - lax.clz(high), width - lax.clz(low))
        # The last binary place of the unit, counted from that of the least subnormal of ``dtype``.
        wide = jnp.finfo(self.float_dtype)
        unit = largest - self.extra - wide.nmant + wide.minexp - 1 - (kind.minexp - kind.nmant)
        # The number of bits to cut off; at least those below the least subnormal number.
        cut = jnp.maximum(length - digits, -unit)
        quotient = self._divided(high, low, cut)
        # A significand of 2**digits carries into the exponent. A significand without its first bit
        # belongs to a subnormal number, which has the least exponent, too, and 0 in the field.
        exponent, last = unit + cut, 2**kind.nexp - 3
        bits = (jnp.clip(exponent, 0, last) << kind.nmant) + quotient
        inf = (2**kind.nexp - 1) << kind.nmant
        bits = jnp.where(exponent > last, inf, jnp.minimum(bits, inf))
        bits = jnp.where(quotient == 0, 0, bits).astype(f"int{kind.bits}")
        # The sign is set as a bit: XLA on CPUs may treat a subnormal number as zero when it negates
        # it.
        bits = jnp.where(is_negative, bits | jnp.iinfo(bits.dtype).min, bits)
        return lax.bitcast_convert_type(bits, dtype)

    def _divided(self, high: jax.Array, low: jax.Array, cut: jax.Array) -> jax.Array:
        """(high * 2**half + low) / 2**cut, to the nearest integer, ties to even."""
        half, widest = self._half, jnp.iinfo(self.word).bits - 2
        one = jnp.ones((), self.word)
        inside = jnp.clip(cut - half, 0, widest)  # bits of the first word that are cut off
        below = jnp.clip(cut, 0, half)  # of the second
        above = jnp.clip(half - cut, 0, widest)
        quotient = jnp.where(cut >= half, high >> inside, (high << above) | (low >> below))
        quotient = jnp.where(cut < 0, (high << half | low) << jnp.clip(-cut, 0, widest), quotient)
        # The remainder and half of the divisor, both without their common second word.
        from_high = high & ((one << inside) - 1)
        from_low = low & ((one << below) - 1)
        middle = jnp.where(inside > 0, (one << inside) >> 1, 0)
        middle_low = jnp.where(inside > 0, 0, (one << below) >> 1)
        is_above = (from_high > middle) | ((from_high == middle) & (from_low > middle_low))
        is_tie = (from_high == middle) & (from_low == middle_low) & (cut > 0)
        is_up = (is_above & (cut > 0)) | (is_tie & (quotient & 1 == 1))
        return quotient + is_up.astype(self.word)


# Room for sums: 2**(31 - 15) addends and 2**(31 - 20) ranks of float32.
_WIDE = Form(jnp.float32, jnp.int32, jnp.uint8, 15, 20, 2**15)
_NARROW = Form(jnp.float32, jnp.int32, jnp.uint8, 20, 0, 2**10)
_DOUBLE = Form(jnp.float64, jnp.int64, jnp.int16, 47, 52, 2**15)
MOST_RANKS = 2**10
# The most addends of a rank whose second words are added before they are carried.
_AT_ONCE = 2**10


def form_of(dtype: Any, addends: int, ranks: int) -> Form:
    """The form for a sum of a total number of addends.

    Raises:
        CollectiveError: there are more than 2**15 addends or 2**10 ranks, or the dtype is not a
            float of 16 bits or more.
    """
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits >= 16:
        form = _DOUBLE if jnp.finfo(dtype).bits == 64 else _WIDE
        if jnp.finfo(dtype).bits == 16 and addends <= _NARROW.most:
            form = _NARROW
        if addends <= form.most and ranks <= MOST_RANKS:
            return form
        raise CollectiveError(
            f"order='invariant' adds at most {form.most} addends of at most {MOST_RANKS} ranks, "
            f"got {addends} of {ranks}; add some of them by another order before"
        )
    raise CollectiveError(
        f"order='invariant' is for integers and for floats of 16 bits and more, got {dtype}"
    )


Collectively = Callable[[list[jax.Array]], list[jax.Array]]


def total(
    leaves: Sequence[jax.Array],
    ranks: int,
    largest: Collectively,
    add: Collectively,
    own: Callable[[jax.Array], jax.Array] = lambda codes: codes,
) -> list[jax.Array]:
    """The sums over the leading dimensions of leaves and over ranks.

    Args:
        leaves: floats of shape (addends of a rank, ...).
        ranks: number of ranks in a group.
        largest: returns the maxima of codes over the ranks.
        add: returns the sums of words over the ranks, of shape (words, ...), or a part of them.
        own: returns the same part of the codes.
    """
    forms = [form_of(leaf.dtype, leaf.shape[0] * ranks, ranks) for leaf in leaves]
    codes = [form.codes(leaf).max(0) for form, leaf in zip(forms, leaves, strict=True)]
    tops = largest(codes)
    words = [_local(form, leaf, top) for form, leaf, top in zip(forms, leaves, tops, strict=True)]
    return [
        form.total(found, own(top), leaf.dtype)
        for form, found, top, leaf in zip(forms, add(words), tops, leaves, strict=True)
    ]


def _local(form: Form, x: jax.Array, largest: jax.Array) -> jax.Array:
    """The sums of words of a rank's addends."""
    words = form.words(x, largest)
    sums = functools.partial(jnp.sum, dtype=form.word)
    if x.shape[0] > _AT_ONCE:
        padding = [(0, 0)] * words.ndim
        padding[1] = (0, -x.shape[0] % _AT_ONCE)
        words = jnp.pad(words, padding)
        words = words.reshape(words.shape[0], -1, _AT_ONCE, *words.shape[2:])
        words = form.carried(sums(words, axis=2))
    return form.carried(sums(words, axis=1))
