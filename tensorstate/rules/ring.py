"""Ring attention: softmax attention whose queries and keys are sharded together.

Every device has a block of the queries, of the keys and of the values, and no device ever has all
the keys. The blocks of keys and values go round a ring of devices, and each device attends with its
queries to the block that it holds (Liu, Zaharia and Abbeel, *Ring Attention with Blockwise
Transformers for Near-Infinite Context*, 2023). Given the scores s of a block, the maximum m and the
sum l of a query so far become

    m' = max(m, max s)    l' = exp(m - m') l + sum exp(s - m')    o' = exp(m - m') o + exp(s - m') v

and o / l is the result once all blocks have passed (Milakov and Gimelshein, *Online normalizer
calculation for softmax*, 2018). In the backward pass the gradients of a block of keys and values
are sent with it, and every device adds its own term. The probabilities of a block are exp(s - m -
log l), so keys go round once more before that, to find m and l. A causal mask compares positions in
the whole sequence.

Devices compute with the code of this file, not with the user's function. Running that function on
small arrays tells how it scales and masks the scores.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorstate.errors import PlanError

# A finite number below every score, as the maximum of no scores, so that exp never sees inf - inf.
LOWEST = -1e30
# A function is tried on arrays with TRIED_PLACES positions in the sequence, enough to see most
# windows, and TRIED elements of other labels. Longer windows show at the ends of the whole
# sequence, tried with as many positions as FAR_ELEMENTS allow: the last query with few keys, and
# the first query with many.
TRIED_PLACES, TRIED, FAR_ELEMENTS = 256, 2, 1 << 24

Names = tuple[str, ...]

# Labels that no user gives: the width of values, and the heads of queries that share a head of
# keys.
VALUES, SHARED = "the width of values", "heads that share one"


class Attention(NamedTuple):
    """Softmax attention, described by labels.

    Attributes:
        operands: labels of queries, keys and values.
        result: labels of the result.
        queries, keys: the labels of positions in the sequence.
        heads: labels of the heads of queries and of keys, if queries have more of them.
        scale: factor of the products of queries and keys; ``None`` if it must be found.
        causal: whether queries attend to no later keys; ``None`` if it must be found.
    """

    operands: tuple[Names, ...]
    result: Names
    queries: str
    keys: str
    heads: tuple[str, str] | None
    scale: float | None = None
    causal: bool | None = None

    @property
    def factor(self) -> float:
        """The scale, or 1 if it is not known."""
        return 1.0 if self.scale is None else self.scale

    @property
    def q(self) -> Names:
        """The labels of queries, with heads in groups."""
        return self._grouped(self.operands[0])

    @property
    def k(self) -> Names:
        """The labels of keys."""
        return self.operands[1]

    @property
    def v(self) -> Names:
        """The labels of values; their width has a label of its own, which is not summed over."""
        return tuple(VALUES if n == self.width else n for n in self.operands[2])

    @property
    def out(self) -> Names:
        """The labels of the result, with heads in groups."""
        return tuple(VALUES if n == self.width else n for n in self._grouped(self.result))

    @property
    def width(self) -> str:
        """The label over which queries and keys are multiplied."""
        return self.operands[0][-1]

    @property
    def rows(self) -> Names:
        """The labels of the maximum and the sum of every query."""
        return tuple(n for n in self.q if n != self.width)

    @property
    def scores(self) -> Names:
        """The labels of scores."""
        return (*self.rows, self.keys)

    @property
    def added(self) -> Names:
        """The labels of the result while terms are added to it."""
        return (*self.rows, *(n for n in self.v if n not in (*self.rows, self.keys)))

    def _grouped(self, names: Names) -> Names:
        if self.heads is None or self.heads[0] not in names:
            return names
        at = names.index(self.heads[0])
        return (*names[:at], self.heads[1], SHARED, *names[at + 1 :])

    def sizes(self, arrays: Sequence[jax.Array]) -> dict[str, int]:
        """The number of elements of every label."""
        q, k, v = arrays
        sizes = dict(zip((*self.k, *self.v), (*k.shape, *v.shape), strict=True))
        sizes |= dict(zip(self.operands[0], q.shape, strict=True))
        if self.heads is not None:
            sizes[SHARED] = sizes[self.heads[0]] // sizes[self.heads[1]]
        return sizes


def attention_of(
    operands: Sequence[Names], results: Sequence[Names], ring: Names, labels: str
) -> Attention:
    """The attention that labels describe.

    Args:
        ring: labels of the queries and of the keys.

    Raises:
        PlanError: the labels do not describe an attention.
    """
    if len(operands) != 3 or len(results) != 1 or len(ring) != 2:
        raise _unfit(ring, labels)
    (q, k, v), (out,), (queries, keys) = operands, results, ring
    width = q[-1:]
    alone_q, alone_k = (sorted({*a} - {*b} - {*ring}) for a, b in ((q, k), (k, q)))
    heads = (alone_q[0], alone_k[0]) if len(alone_q) == len(alone_k) == 1 else None
    fits = (
        queries in q and queries in out and queries not in (*k, *v)
        and keys in k and keys in v and keys not in (*q, *out)
        and width != (queries,) and {*width} <= {*k}
        and (heads is not None or not alone_k)
        and {*out} - {*v} == {queries, *alone_q}
        and {*k} - {*width} <= {*v} and {*q} - {*width} <= {*out}
    )  # fmt: skip
    if not fits:
        raise _unfit(ring, labels)
    return Attention((q, k, v), out, queries, keys, heads)


def _unfit(ring: Names, labels: str) -> PlanError:
    return PlanError(
        f"ring={' '.join(ring)!r} must name the labels of the queries and of the keys of an "
        "attention, as 'q k' of 'b q h d, b k h d, b k h d -> b q h d', whose queries and keys are "
        f"multiplied over the last label of queries, got {labels!r}"
    )


# ---------------------------------------------------------------------- a device's blocks


class Blocks(NamedTuple):
    """The positions of a device in the sequence.

    Attributes:
        queries: the positions of its queries in the whole sequence.
        ring: names of the mesh axes around which keys and values go; empty if it has all of them.
    """

    queries: Any
    ring: Names = ()


def attend(a: Attention, arrays: Sequence[jax.Array], blocks: Blocks) -> jax.Array:
    """The result for a device's queries, given its queries, keys and values."""
    sizes = a.sizes(arrays)
    result, _ = _forward(a, arrays, blocks)
    widths = [VALUES if n == a.width else n for n in a.result]
    result = _product(a.out, (a.added, result)).reshape([sizes[n] for n in widths])
    return result.astype(arrays[2].dtype)


def gradients(
    a: Attention, arrays: Sequence[jax.Array], cotangent: jax.Array, blocks: Blocks
) -> tuple[jax.Array, ...]:
    """The gradients with respect to a device's queries, keys and values."""
    # The barrier delays the products until the cotangent exists: otherwise XLA would reuse those of
    # the forward pass.
    *held, given = lax.optimization_barrier((*arrays, cotangent))
    result, log_sum = _forward(a, held, blocks)
    sizes, dtype = a.sizes(held), held[0].dtype
    q, k, v = held[0].reshape([sizes[n] for n in a.q]), held[1], held[2]
    given = given.reshape([sizes[n] for n in a.out])
    given = _product(a.added, (a.out, given)).astype(dtype)
    along = tuple(range(len(a.rows), len(a.added)))
    of_rows = (given * result).sum(along)

    # With p = exp(s - log l), o = sum p v and the cotangent g: dv = p g, ds = p (g v - g o), dq =
    # ds k and dk = ds q. The term g o of a query is the same for all blocks.
    def block(of_q, passing, sums, at):
        (keys, values), (of_k, of_v) = passing, sums
        weights = jnp.exp(_scores(a, q, keys, blocks, at) - log_sum[..., None])
        change = _product(a.scores, (a.added, given), (a.v, values)) - of_rows[..., None]
        change = (a.factor * weights * change).astype(dtype)
        of_q += _product(a.q, (a.scores, change), (a.k, keys))
        of_k += _product(a.k, (a.scores, change), (a.q, q))
        of_v += _product(a.v, (a.scores, weights.astype(dtype)), (a.added, given))
        return of_q, (of_k, of_v)

    of_q, *others = (jnp.zeros(x.shape, log_sum.dtype) for x in (q, k, v))
    of_q, _, sums = _around(blocks.ring, block, (of_q, (k, v), tuple(others)))
    return tuple(
        x.reshape(y.shape).astype(y.dtype) for x, y in zip((of_q, *sums), arrays, strict=True)
    )


def _forward(
    a: Attention, arrays: Sequence[jax.Array], blocks: Blocks
) -> tuple[jax.Array, jax.Array]:
    """The result, and the logarithm of the sum of every query's exponentials."""
    sizes = a.sizes(arrays)
    q, k, v = arrays[0].reshape([sizes[n] for n in a.q]), arrays[1], arrays[2]
    widths = tuple(range(len(a.rows), len(a.added)))

    def block(state, passing, sums, at):
        highest, total, result = state
        keys, values = passing
        scores = _scores(a, q, keys, blocks, at)
        higher = jnp.maximum(highest, scores.max(-1))
        weights, kept = jnp.exp(scores - higher[..., None]), jnp.exp(highest - higher)
        total = kept * total + weights.sum(-1)
        terms = _product(a.added, (a.scores, weights.astype(values.dtype)), (a.v, values))
        return (higher, total, jnp.expand_dims(kept, widths) * result + terms), sums

    exact = jnp.promote_types(q.dtype, jnp.float32)
    rows = jnp.zeros([sizes[n] for n in a.rows], exact)
    state = rows + LOWEST, rows, jnp.zeros([sizes[n] for n in a.added], exact)
    (highest, total, result), _, _ = _around(blocks.ring, block, (state, (k, v), ()))
    return result / jnp.expand_dims(total, widths), highest + jnp.log(total)


def _scores(a: Attention, q: jax.Array, keys: jax.Array, blocks: Blocks, at: Any) -> jax.Array:
    """The scores of block number ``at`` of the keys of the sequence; masked keys have -inf."""
    scores = a.factor * _product(a.scores, (a.q, q), (a.k, keys))
    if not a.causal:
        return scores
    num_keys = scores.shape[-1]
    places = at * num_keys + jnp.arange(num_keys)
    later = [d for d, n in enumerate(a.rows) if n != a.queries]
    seen = jnp.expand_dims(blocks.queries[:, None] >= places, later)
    return jnp.where(seen, scores, -jnp.inf)


def _product(out: Names, *terms: tuple[Names, jax.Array]) -> jax.Array:
    """An einsum by labels, which accumulates in at least 32 bits."""
    letters: dict[str, str] = {}
    spell = [
        "".join(letters.setdefault(n, chr(ord("a") + len(letters))) for n in names)
        for names in (*(names for names, _ in terms), out)
    ]
    arrays = [x for _, x in terms]
    exact = jnp.promote_types(jnp.result_type(*arrays), jnp.float32)
    spec = f"{','.join(spell[:-1])}->{spell[-1]}"
    return jnp.einsum(spec, *arrays, preferred_element_type=exact)


# ---------------------------------------------------------------------- the ring

Carried = tuple[Any, Any, Any]
"""The state that stays on a device; the blocks that go round; the sums that go round with them."""


def _around(
    ring: Names,
    block: Callable[..., tuple[Any, Any]],
    carried: Carried,
    sent: tuple[tuple[str, Any], ...] = (),
    last: bool = True,
) -> Carried:
    """Blocks visit all devices along mesh axes, and sums return to where they began.

    They go fully round the last axis before they are sent one place along the axis before it.
    Blocks are not sent any more once all devices have seen them.

    Args:
        ring: names of the mesh axes to go round.
        block: called with the state that stays, the blocks and sums that have arrived, and the
            number of these blocks in the sequence; returns the new state and the new sums.
        carried: the state, the blocks and the sums at the beginning.
        sent: outer axes, and how many times blocks were sent along each.
        last: whether no device needs the blocks afterwards.
    """
    if not ring:
        stays, blocks, sums = carried
        stays, sums = block(stays, blocks, sums, _number(sent))
        return stays, blocks, sums
    name, *others = ring
    size = lax.axis_size(name)

    def turn(k, carried):
        here = (*sent, (name, k))
        stays, blocks, sums = _around(tuple(others), block, carried, here, last=False)
        return stays, _send(blocks, name), _send(sums, name)

    # The last turn is outside the loop: the sums must still return, but not the blocks, which all
    # devices have seen.
    carried = lax.fori_loop(0, size - 1, turn, carried)
    here = (*sent, (name, size - 1))
    stays, blocks, sums = _around(tuple(others), block, carried, here, last)
    return stays, blocks if last else _send(blocks, name), _send(sums, name)


def _number(sent: Sequence[tuple[str, Any]]) -> Any:
    """The number, in the sequence, of the blocks on this device after some sends."""
    number: Any = 0
    for name, times in sent:
        size = lax.axis_size(name)
        number = number * size + (lax.axis_index(name) - times) % size
    return number


def _send(arrays: Any, name: str) -> Any:
    """Send every device's arrays to the next device along a mesh axis."""
    size = lax.axis_size(name)
    pairs = [(source, (source + 1) % size) for source in range(size)]
    return jax.tree.map(lambda x: lax.ppermute(x, name, pairs), arrays)


# ---------------------------------------------------------------------- what a function computes


@functools.cache
def found(
    a: Attention,
    function: Callable[..., tuple[Any, ...]],
    sizes: tuple[tuple[str, int], ...],
    dtypes: tuple[np.dtype, ...],
) -> Attention:
    """The attention with the scale and the mask of the function declared as an attention.

    Args:
        sizes: number of elements of the labels.
        dtypes: types of queries, keys and values.

    Raises:
        PlanError: the function does not run, or is not such an attention, on small arrays.
    """
    if a.scale is not None and a.causal is not None:
        return a
    exact = {a.width, a.operands[2][-1], *(a.heads or ())}
    tried = {n: size if n in exact else min(size, TRIED) for n, size in sizes}
    of_places = {n: min(size, TRIED_PLACES) for n, size in sizes if n in (a.queries, a.keys)}
    shapes = [[{**tried, **of_places}[n] for n in names] for names in a.operands]
    draw = np.random.default_rng(0)
    arrays = [
        draw.normal(size=shape).astype(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    name = getattr(function, "__name__", "the function")
    function = jax.jit(function)  # one program, since a single operation compiles as long
    try:
        scale = _scale(a, function, arrays) if a.scale is None else a.scale
        returned = np.asarray(function(*arrays)[0], np.float64)
    except Exception as error:  # for example of a kernel that rejects sizes or devices
        raise PlanError(
            f"{name}, declared with ring=, does not run on arrays of {shapes}, by which its scale "
            f"and its mask are found: give scale= and causal= ({error})"
        ) from error
    places = np.arange(of_places[a.queries])
    # bfloat16 has 8 bits of precision.
    tolerance = 0.05 if min(dtype.itemsize for dtype in dtypes) < 4 else 1e-3
    for causal in (False, True) if a.causal is None else (a.causal,):
        one = a._replace(scale=scale, causal=causal)
        ours = _attended(one, arrays, places)
        if np.allclose(ours, returned, tolerance, tolerance):
            if _has_window(one, function, dict(sizes), arrays, tolerance):
                break
            return one
    raise PlanError(
        f"{name}, declared with ring={a.queries + ' ' + a.keys!r}, does not return softmax "
        "attention to all keys, or to all that are not later, as with a bias, a window, a cap or "
        "dropout: declare it without ring="
    )


@functools.partial(jax.jit, static_argnums=0)  # one program for all functions with these labels
def _attended(a: Attention, arrays: Sequence[Any], places: Any) -> jax.Array:
    return attend(a, arrays, Blocks(places))


def _has_window(
    a: Attention,
    function: Callable[..., tuple[Any, ...]],
    sizes: dict[str, int],
    tried: Sequence[np.ndarray],
    tolerance: float,
) -> bool:
    """Whether the last query misses the first keys, or, if not causal, the first one the last.

    Functions that do not accept fewer keys than queries, or fewer queries than keys, tell nothing.
    """
    draw = np.random.default_rng(1)
    for many, few, end in ((a.queries, a.keys, -1), (a.keys, a.queries, 0)):
        if sizes[many] <= TRIED_PLACES or (end == 0 and a.causal):
            continue
        arrays = []
        for names, x in zip(a.operands, tried, strict=True):
            tried_sizes: dict[str, int] = dict(zip(names, x.shape, strict=True))
            rest = math.prod(size for n, size in tried_sizes.items() if n not in (many, few))
            places = {many: min(sizes[many], max(1, FAR_ELEMENTS // rest)), few: TRIED}
            shape = [places.get(n, size) for n, size in tried_sizes.items()]
            arrays.append(draw.normal(size=shape).astype(x.dtype))
        try:
            returned = np.asarray(function(*arrays)[0], np.float64)
        except Exception:  # a kernel may raise any exception for these sizes
            continue
        q, k, v = arrays
        q = np.take(q, [end], a.operands[0].index(a.queries))
        expected = _attended(a._replace(causal=False), [q, k, v], np.arange(1))
        found_there = np.take(returned, [end], a.result.index(a.queries))
        if not np.allclose(expected, found_there, tolerance, tolerance):
            return True
    return False


def _scale(
    a: Attention, function: Callable[..., tuple[Any, ...]], arrays: Sequence[np.ndarray]
) -> float:
    """The factor of scores, measured with one key of score 1 and all others of score 0."""
    q, k, v = (np.zeros_like(x) for x in arrays)
    q[..., 0] = 1
    k[tuple(0 if n in (a.keys, a.width) else slice(None) for n in a.k)] = 1
    v[tuple(0 if n == a.keys else slice(None) for n in a.operands[2])] = 1
    last = tuple(-1 if n == a.queries else 0 for n in a.result)
    share = float(np.asarray(function(q, k, v)[0], np.float64)[last])
    # One score is the scale s, all others are 0: its share is exp(s) / (exp(s) + num_keys - 1).
    num_keys = k.shape[a.k.index(a.keys)]
    measured = math.log(share * (num_keys - 1) / (1 - share)) if 0 < share < 1 else math.inf
    usual = (q.shape[-1] ** -0.5, 1.0)
    nearest = min(usual, key=lambda scale: abs(scale - measured))
    return nearest if abs(nearest - measured) <= 0.02 * nearest else measured
