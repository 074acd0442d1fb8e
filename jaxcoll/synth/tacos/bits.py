"""Words of 64 bits in kernels: which are set, and one of them at random.

Random numbers are made here too, from a state of 64 bits, so that kernels draw the same whether
they run as Python or compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcoll.numerics.compiled import instruction, kernel


def _trailing_zeros(builder: Any, word: Any) -> Any:
    from llvmlite import ir  # as Numba: imported when the first kernel is compiled

    return builder.cttz(word, ir.Constant(ir.IntType(1), 1))


@instruction(_trailing_zeros)
def lowest_bit(word: Any) -> Any:
    """Position of the lowest bit set in a uint64, int64; undefined for 0."""
    bits = int(word)
    return np.int64((bits & -bits).bit_length() - 1)


@instruction(lambda builder, word: builder.ctpop(word))
def count_bits(word: Any) -> Any:
    """Number of bits set in a uint64, int64."""
    return np.int64(int(word).bit_count())


@kernel(inline="always")
def bit_of(i):
    """The word in which only bit i mod 64 is set, uint64."""
    return np.uint64(1) << np.uint64(i & 63)


@kernel(inline="always")
def next_random(x):
    """The uint64 that follows one above 0 (xorshift64: Marsaglia 2003, "Xorshift RNGs", p. 4)."""
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    return x


@kernel(inline="always")
def random_below(x, count):
    """A number 0..count-1, int64, from the upper half of a random uint64; count < 2**32."""
    return np.int64(((x >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@kernel(inline="always")
def draw_bit(candidates, words, x):
    """A random bit of those set in some words, of which there is at least one; all equally likely.

    Args:
        candidates: the words, uint64.
        words: how many there are; a constant makes it fast.
        x: a random uint64.
    """
    count = np.int64(0)
    for q in range(words):
        count += count_bits(candidates[q])
    draw = random_below(x, count)
    # Which word the draw falls into is as good as random: without a branch nobody need guess it.
    count = before = q = np.int64(0)
    for i in range(words - 1):
        count += count_bits(candidates[i])
        if count <= draw:
            before = count
            q = i + 1
    word = candidates[q]
    for _ in range(draw - before):
        word &= word - np.uint64(1)
    return (q << 6) + lowest_bit(word)
