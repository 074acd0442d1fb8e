"""``jc.ragged_all_to_all`` against the loops of ``jax.lax``'s documentation, in NumPy."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import topologies
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.execute.lowerings import buffer
from tests.execute.harness import mesh_of, sharded

ROWS, OUT, WIDTH = 9, 40, 3
# From source (row) to destination; 0 for some others, and rows that ranks keep.
MOST = np.array([[2, 7, 0, 1], [3, 0, 0, 0], [2, 2, 4, 9], [5, 0, 1, 0]])
# Short rows are cheaper padded where the schedule is left open.
MATRIX = {"largest": "MOST", "schedule": "direct"}
GROUPS = ((0, 2), (3, 1))
MOST_OF_TWO = np.array([[1, 6], [0, 3]])


class Case(NamedTuple):
    """Arguments of all ranks, stacked."""

    operand: np.ndarray
    output: np.ndarray
    input_offsets: np.ndarray
    send_sizes: np.ndarray
    output_offsets: np.ndarray
    recv_sizes: np.ndarray


def case(seed: int, most: np.ndarray, groups=None, slices: int = 1, fill: float = 0.7) -> Case:
    """Random sizes within a bound, at random offsets, in outputs that they do not fill."""
    rng = np.random.default_rng(seed)
    groups = groups or (tuple(range(len(most))),)
    ranks, size = sum(map(len, groups)), len(most)
    sizes, starts, targets, got = np.zeros((4, ranks, size * slices), np.int32)
    for group in groups:
        for a, src in enumerate(group):
            for b in range(size):
                left = most[a, b]
                for i in range(b * slices, (b + 1) * slices):
                    sizes[src, i] = min(ROWS, rng.integers(0, left + 1)) * (rng.random() < fill)
                    left -= sizes[src, i]
                    starts[src, i] = rng.integers(0, ROWS - sizes[src, i] + 1)
        for b, dst in enumerate(group):
            parts = [(src, b * slices + q) for src in group for q in range(slices)]
            room, at = OUT - sum(sizes[part] for part in parts), 0
            for part in rng.permutation(parts):
                skipped = rng.integers(0, room // 2 + 1)
                room, at = room - skipped, at + skipped
                targets[tuple(part)], at = at, at + sizes[tuple(part)]
            for a, src in enumerate(group):
                of = slice(b * slices, (b + 1) * slices)
                got[dst, a * slices : (a + 1) * slices] = sizes[src, of]
    values = rng.normal(size=(ranks, ROWS + OUT, WIDTH)).astype(np.float32)
    return Case(values[:, :ROWS], values[:, ROWS:], starts, sizes, targets, got)


def slices_of(given: Case, groups=None):
    """Each slice as (source, rows there, destination, rows there), by destination and source."""
    groups = groups or (tuple(range(len(given.operand))),)
    for group in groups:
        count = given.send_sizes.shape[1] // len(group)
        for b, dst in enumerate(group):
            for src in group:
                for i in range(b * count, (b + 1) * count):
                    start, target = given.input_offsets[src, i], given.output_offsets[src, i]
                    size = given.send_sizes[src, i]
                    yield src, slice(start, start + size), dst, slice(target, target + size)


def expected(given: Case, groups=None) -> np.ndarray:
    result = given.output.copy()
    for src, rows, dst, target in slices_of(given, groups):
        result[dst, target] = given.operand[src, rows]
    return result


def transposed(given: Case, cotangent: np.ndarray, groups=None) -> tuple[np.ndarray, np.ndarray]:
    """The loops of ``expected`` backwards, for operand and output."""
    operand, output = np.zeros_like(given.operand), cotangent.copy()
    for src, rows, dst, target in slices_of(given, groups):
        operand[src, rows] += cotangent[dst, target]
        output[dst, target] = 0
    return operand, output


def on_mesh(sides=(4,), axis_name="x", check_vma: bool = True, **options):
    """A function of the stacked arguments of all ranks."""
    names = ("x", "y", "z")[: len(sides)]
    spec = P(axis_name if sides != (4,) else names)

    def call(*arguments):
        mine = (each[0] for each in arguments)
        return jc.ragged_all_to_all(*mine, axis_name=axis_name, **options)[None]

    return jax.shard_map(
        call, mesh=mesh_of(*sides), in_specs=spec, out_specs=spec, check_vma=check_vma
    )


@functools.cache
def compiled(slices: int = 1, **options):
    """A program for all cases of so many slices per rank; matrices are given by name."""
    named = {"MOST": MOST, "MOST_OF_TWO": MOST_OF_TWO}
    known: dict[str, Any] = {key: named.get(str(value), value) for key, value in options.items()}
    return jax.jit(on_mesh(**known))


# ---------------------------------------------------------------------- values


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), fill=st.sampled_from((0.0, 0.5, 1.0)))
@pytest.mark.parametrize(
    "options",
    [{}, {"largest": 9}, MATRIX, {**MATRIX, "check_vma": False}],
    ids=["any", "one", "matrix", "unchecked"],
)
def test_any_sizes_and_offsets(options, seed, fill):
    given = case(seed, MOST, slices=2, fill=fill)
    np.testing.assert_array_equal(compiled(2, **options)(*given), expected(given))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
@pytest.mark.parametrize("network", [None, "torus"])
def test_eight_ranks(network, seed):
    most = np.random.default_rng(0).zipf(1.5, (8, 8)) % 6
    topology = None if network is None else topologies.torus(2, 4)
    with jc.use_topology(topology):
        program = _eight(most.tobytes(), most.dtype.str)
        given = case(seed, most)
        np.testing.assert_array_equal(program(*given), expected(given))


@functools.cache
def _eight(content: bytes, dtype: str):
    most = np.frombuffer(content, dtype).reshape(8, 8)
    return jax.jit(on_mesh((8,), largest=most, schedule="auto"))


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "open_shop"},
        {"schedule": "auto", "lowering": "scan"},
        {"schedule": "min_congestion"},
        {"schedule": "min_congestion", "lowering": "ssa"},
    ],
    ids=str,
)
def test_schedules_by_name(options):
    given = case(3, MOST)
    program = on_mesh(largest=MOST, check=False, **options)
    np.testing.assert_array_equal(jax.jit(program)(*given), expected(given))


def test_schedules_as_they_are():
    """Of unequal shares, which are in another ratio than the bounds, and of equal shares."""
    given, ring = case(4, MOST), topologies.ring(4)
    shares = jc.Collective("all_to_all", 4, shares=(MOST > 0) * 3 + np.eye(4, dtype=int))
    for schedule in (jc.synthesize(ring, shares), jc.synthesize(ring, "all_to_all", chunks=2)):
        program = on_mesh(largest=MOST, check=False, schedule=schedule)
        np.testing.assert_array_equal(jax.jit(program)(*given), expected(given))


def test_a_schedule_that_does_not_fit_is_refused():
    given = case(0, MOST)
    shares = jc.Collective("all_to_all", 4, shares=MOST.T)
    schedule = jc.synthesize(topologies.ring(4), shares)
    with pytest.raises(ScheduleError, match="no chunks for 2->0, 2->1, which"):
        jax.eval_shape(on_mesh(largest=MOST, schedule=schedule), *given)
    eight = np.ones((8, 8), int) + np.eye(8, dtype=int)
    schedule = jc.synthesize(
        topologies.ring(8), jc.Collective("all_to_all", 8, shares=eight), "open_shop"
    )
    with pytest.raises(ScheduleError, match="is for 8 ranks, but axis 'x' of 4 has 4"):
        jax.eval_shape(on_mesh(largest=MOST, schedule=schedule), *given)


@pytest.mark.parametrize(
    "options", [{}, {"largest": MOST_OF_TWO, "schedule": "direct"}], ids=["any", "matrix"]
)
def test_groups(options):
    given = case(5, MOST_OF_TWO, GROUPS, slices=2)
    program = jax.jit(on_mesh(axis_index_groups=GROUPS, **options))
    np.testing.assert_array_equal(program(*given), expected(given, GROUPS))


@pytest.mark.parametrize("axes", [("x", "y"), ("y", "x")])
def test_several_axes(axes):
    given = case(6, MOST)
    np.testing.assert_array_equal(
        jax.jit(on_mesh((2, 2), axes, largest=MOST, schedule="direct"))(*given), expected(given)
    )


def test_an_axis_of_a_known_mesh():
    """A network of the whole mesh sees the exchanges along an axis at the same time."""
    given = case(7, MOST_OF_TWO, ((0, 1),))
    with jc.use_topology(topologies.ring(4)):
        for options in ({}, {"schedule": "auto"}):  # the one is padded, since that is cheaper
            program = on_mesh((2, 2), "y", False, largest=MOST_OF_TWO, **options)
            np.testing.assert_array_equal(jax.jit(program)(*given), expected(given))
            text = jax.jit(program).lower(*given).as_text()
            assert ("collective_permute" in text) == bool(options)


def test_one_rank():
    given = case(8, np.array([[9]]), slices=3)
    program = jax.jit(on_mesh((1,)))
    np.testing.assert_array_equal(program(*given), expected(given))


def test_of_slices_that_overlap_the_last_counts():
    given = case(9, MOST)
    given = given._replace(output_offsets=np.minimum(given.output_offsets, 4))
    np.testing.assert_array_equal(compiled(1, **MATRIX)(*given), expected(given))


@pytest.mark.parametrize(
    ("rows", "out", "shape"), [(0, OUT, (2,)), (ROWS, 0, (2,)), (ROWS, OUT, (0,)), (ROWS, OUT, ())]
)
def test_empty_and_flat_arrays(rows, out, shape):
    given = case(10, MOST)
    cut = tuple(slice(n) for n in shape) if shape else (0,)
    given = given._replace(
        operand=given.operand[:, :rows][:, :, *cut], output=given.output[:, :out][:, :, *cut]
    )
    if not rows or not out:
        nothing = np.zeros_like(given.send_sizes)
        given = given._replace(send_sizes=nothing, recv_sizes=nothing)
    np.testing.assert_array_equal(
        jax.jit(on_mesh(largest=MOST, schedule="direct", check=bool(shape)))(*given),
        expected(given),
    )


def test_dtypes():
    """Whatever an array holds, and offsets of any integers."""
    given = case(11, MOST)
    dtypes = (np.bool_, np.int8, np.uint32, jnp.bfloat16, jnp.float8_e4m3fn, np.complex64)

    def call(operand, output, *slices):
        mine = [each[0] for each in slices]
        mine = [each.astype(dtype) for each, dtype in zip(mine, (int, "u1", "u4", "i2"))]  # noqa: B905
        return [
            jc.ragged_all_to_all(
                (4 * operand[0]).astype(dtype), (4 * output[0]).astype(dtype), *mine,
                axis_name="x", largest=MOST, schedule="direct", check=False,
            )[None].astype(np.complex64)
            for dtype in dtypes
        ]  # fmt: skip

    found = sharded(call, mesh_of(4), P("x"), P("x"))(*given)
    for dtype, got in zip(dtypes, found, strict=True):
        both = [np.asarray(jnp.asarray(4 * x).astype(dtype)) for x in (given.operand, given.output)]
        wanted = expected(Case(both[0], both[1], *given[2:])).astype(np.complex64)
        np.testing.assert_array_equal(got, wanted, err_msg=str(dtype))


def test_64_bit_types():
    given = case(12, MOST)
    with jax.enable_x64(True):
        wide = Case(*(each.astype("f8" if each.dtype == "f4" else "i8") for each in given))
        program = jax.jit(on_mesh(largest=MOST, schedule="direct"))
        np.testing.assert_array_equal(program(*wide), expected(wide))
        far = wide.output_offsets.copy()
        far[wide.send_sizes > 0] = 2**40
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"output has 40"):
            jax.block_until_ready(program(*wide._replace(output_offsets=far)))


# ---------------------------------------------------------------------- derivatives and batches


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({"largest": 9}, None),
        ({"largest": MOST, "schedule": "direct"}, None),
        ({"largest": MOST, "schedule": "min_congestion", "lowering": "scan"}, None),
        (
            {"largest": MOST_OF_TWO, "axis_index_groups": GROUPS, "schedule": "direct"},
            GROUPS,
        ),
    ],
    ids=["one", "matrix", "scan", "groups"],
)
def test_derivatives(options, groups):
    given = case(13, MOST if groups is None else MOST_OF_TWO, groups, slices=2)
    program = on_mesh(check=False, **options)

    def both(operand, output, cotangent):
        _, back = jax.vjp(lambda *x: program(*x, *given[2:]), operand, output)
        pair = (operand, output)
        return back(cotangent), jax.jvp(lambda *x: program(*x, *given[2:]), pair, pair)

    cotangent = np.random.default_rng(0).normal(size=given.output.shape).astype(np.float32)
    backward, (value, forward) = jax.jit(both)(given.operand, given.output, cotangent)
    operand, output = transposed(given, cotangent, groups)
    np.testing.assert_allclose(backward[0], operand, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(backward[1], output)
    np.testing.assert_array_equal(value, expected(given, groups))
    np.testing.assert_array_equal(forward, value)  # it is linear


@pytest.mark.parametrize("options", [{"lowering": "scan"}, {"schedule": "min_congestion"}], ids=str)
def test_rows_that_nobody_writes_count_for_nothing(options, monkeypatch):
    """Neither there nor back, whatever stands in memory that was not cleared."""

    def filled(like, length):
        rows = jnp.full((length, *like.shape[1:]), jnp.nan, like.dtype)
        return buffer.cast_like(rows, like)

    monkeypatch.setattr(buffer, "blank", filled)
    given = case(19, MOST)
    program = on_mesh(largest=MOST, check=False, **{"schedule": "direct", **options})

    def back(operand, output):
        value, transpose = jax.vjp(lambda *x: program(*x, *given[2:]), operand, output)
        return value, transpose(value)

    value, (operand, _) = jax.jit(back)(given.operand, given.output)
    np.testing.assert_array_equal(value, expected(given))
    wanted, _ = transposed(given, expected(given))
    np.testing.assert_allclose(operand, wanted, rtol=1e-5, atol=1e-6)


def test_vmap():
    """Over batches with sizes of their own, checked one by one."""
    cases = [case(seed, MOST) for seed in range(3)]
    stacked = [np.stack(each, 1) for each in zip(*cases, strict=True)]

    def call(*arguments):
        mine = [each[0] for each in arguments]
        batch = functools.partial(
            jc.ragged_all_to_all, axis_name="x", largest=MOST, schedule="direct"
        )
        return jax.vmap(batch)(*mine)[None]

    program = sharded(call, mesh_of(4), P("x"), P("x"))
    wanted = np.stack([expected(each) for each in cases], 1)
    np.testing.assert_array_equal(program(*stacked), wanted)
    stacked[3][1, 2] = 8
    with pytest.raises(jax.errors.JaxRuntimeError, match="on rank 1 "):
        jax.block_until_ready(program(*stacked))


def test_an_axis_of_vmap():
    given = case(14, MOST)
    call = functools.partial(jc.ragged_all_to_all, axis_name="i", largest=MOST)
    np.testing.assert_array_equal(jax.vmap(call, axis_name="i")(*given), expected(given))


# ---------------------------------------------------------------------- what is sent


def permutes(options: dict, most: np.ndarray, width: int) -> tuple[int, int]:
    """Permutes of a program, and the bytes that all ranks send in them."""
    ranks = len(most)
    numbers = jax.ShapeDtypeStruct((ranks, ranks), np.int32)
    arrays = jax.ShapeDtypeStruct((ranks, int(most.max()) * ranks, width), np.float32)
    program = on_mesh((ranks,), check=False, **options)
    text = jax.jit(program).lower(arrays, arrays, *[numbers] * 4).as_text()
    found = re.findall(
        r"collective_permute.*?source_target_pairs = .*?tensor<(\d+)x2xi64>.*?-> tensor<(\S+)xf32>",
        text,
    )
    shapes = [[int(pairs), *map(int, shape.split("x"))] for pairs, shape in found]
    return len(found), sum(4 * int(np.prod(shape)) for shape in shapes)


def test_nothing_is_sent_but_what_there_is():
    most = np.random.default_rng(1).zipf(1.3, (4, 4)) % 50
    np.fill_diagonal(most, 5)
    rows = most.sum() - np.trace(most)
    # Rows so long that a permute more is always worth it.
    count, nbytes = permutes({"largest": most}, most, 2**20)
    assert nbytes == 2**22 * rows
    # Short ones are padded, rather than more permutes; by default to blocks of one size.
    few, nbytes = permutes({"largest": most, "schedule": "direct"}, most, 4)
    assert few == 3 < count
    assert 16 * rows < nbytes < 16 * 12 * most.max()
    assert permutes({"largest": most}, most, 4) == (0, 0)


def test_pairs_of_nothing_have_no_permute():
    most = np.zeros((4, 4), int)
    most[0, 1] = most[2, 3] = 5
    assert permutes({"largest": most}, most, 4) == (1, 2 * 5 * 16)
    most[:] = np.diag([1, 2, 3, 4])
    assert permutes({"largest": most}, most, 4) == (0, 0)


def test_many_rows_are_counted_by_several():
    """Beyond as many as are counted one by one, pairs are padded by a 64th in all."""
    most = np.random.default_rng(2).integers(1, 2**22, (4, 4))
    np.fill_diagonal(most, 0)
    _, nbytes = permutes({"largest": most, "schedule": "direct"}, most, 64)
    assert 1 < nbytes / (256 * most.sum()) < 1 + 1 / 64


# ---------------------------------------------------------------------- faults


def test_faults_end_in_one_error_on_all_ranks():
    program, given = compiled(1, **MATRIX), case(15, MOST, fill=1.0)
    given = given._replace(
        send_sizes=np.minimum(MOST, 3).astype(np.int32), input_offsets=0 * given.input_offsets,
        recv_sizes=np.minimum(MOST, 3).T.astype(np.int32), output_offsets=0 * given.input_offsets,
    )  # fmt: skip
    faults = [
        ("send_sizes", 1, -1, r"send_sizes\[1\] is -1; sizes are at least 0"),
        ("recv_sizes", 1, -1, r"recv_sizes\[1\] is -1; sizes are at least 0"),
        ("input_offsets", 1, -1, r"input_offsets\[1\] is -1"),
        ("input_offsets", 1, 8, r"input_offsets\[1\] on end at 10; operand has 9"),
        ("output_offsets", 3, -2, r"output_offsets\[3\] is -2"),
        ("output_offsets", 3, 38, r"output_offsets\[3\] on end at 41; output has 40"),
        ("send_sizes", 1, 4, r"up to send_sizes\[1\] there are 4 rows for one rank; .* allows 2"),
        ("recv_sizes", 1, 7, r"recv_sizes\[1\] is 7, but the rank it is from sends 0 rows"),
    ]
    for name, at, value, message in faults:
        wrong = getattr(given, name).copy()
        wrong[2, at] = value
        with pytest.raises(jax.errors.JaxRuntimeError) as raised:
            jax.block_until_ready(program(*given._replace(**{name: wrong})))
        said = str(raised.value)
        assert re.search(rf"ragged_all_to_all over axis 'x' of 4: on rank 2 .*{message}", said), (
            said
        )
        # The devices are not left waiting: the same program runs on.
        np.testing.assert_array_equal(program(*given), expected(given))


def test_offsets_of_nothing_may_be_anything():
    given = case(16, MOST)
    none = given.send_sizes == 0
    given.input_offsets[none], given.output_offsets[none] = -7, 10**6
    wanted = expected(given._replace(input_offsets=np.abs(given.input_offsets)))
    np.testing.assert_array_equal(compiled(1, **MATRIX)(*given), wanted)


def test_without_checks_sizes_are_cut():
    given = case(17, MOST, fill=1.0)
    sizes = given.send_sizes.copy()
    sizes[0, 1], sizes[1, 2] = 100, -3
    wanted = sizes.copy()
    wanted[0, 1] = min(MOST[0, 1], ROWS - given.input_offsets[0, 1], given.recv_sizes[1, 0])
    wanted[1, 2] = 0
    found = compiled(1, **MATRIX, check=False)(*given._replace(send_sizes=sizes))
    np.testing.assert_array_equal(found, expected(given._replace(send_sizes=wanted)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output": np.zeros((4, OUT, 2), np.float32)}, r"operand of shape.*\(40, 2\)"),
        ({"output": np.zeros((4, OUT, WIDTH), np.int32)}, "and its dtype, got float32.*int32"),
        ({"operand": np.zeros(4, np.float32)}, r"operand of shape \(N, \.\.\.\)"),
        ({"send_sizes": np.zeros((4, 3), np.int32)}, r"one shape.*sizes int32 of shape \(3,\)"),
        ({"send_sizes": np.zeros((4, 4), np.float32)}, "as integers of one shape"),
        ({"recv_sizes": np.zeros((4, 4, 1), np.int32)}, "as integers of one shape"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(change, message):
    given = case(0, MOST)._replace(**change)
    with pytest.raises(CollectiveError, match=message):
        jax.eval_shape(on_mesh(), *given)


@pytest.mark.parametrize(
    ("largest", "message"),
    [
        (-1, "largest must be at least 0, got -1"),
        (MOST - 1, "largest must be at least 0, got -1"),
        (1.5, r"largest must be an integer or a matrix of 4 x 4 integers"),
        (True, "largest must be an integer or a matrix"),
        (MOST[:3], r"a matrix of 4 x 4 integers, one for each pair of ranks"),
        (MOST[0], "a matrix of 4 x 4 integers"),
        ("many", "largest must be an integer or a matrix"),
    ],
)
def test_bounds_that_are_none(largest, message):
    with pytest.raises(CollectiveError, match=message):
        jax.eval_shape(on_mesh(largest=largest), *case(0, MOST))


def test_a_bound_must_be_known():
    given = case(0, MOST)

    def call(largest, *arguments):
        mine = (each[0] for each in arguments)
        return jc.ragged_all_to_all(*mine, axis_name="x", largest=largest)[None]

    program = jax.shard_map(call, mesh=mesh_of(4), in_specs=(P(), *[P("x")] * 6), out_specs=P("x"))
    with pytest.raises(CollectiveError, match="largest must be known while tracing"):
        jax.eval_shape(program, np.int32(3), *given)


def test_numbers_of_slices_that_do_not_divide():
    given = case(0, MOST)
    six = [np.zeros((4, 6), np.int32)] * 4
    with pytest.raises(CollectiveError, match=r"K a multiple of the 4 ranks of a group"):
        jax.eval_shape(on_mesh(), given.operand, given.output, *six)


# ---------------------------------------------------------------------- beside other axes


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_beside_axes_that_are_not_manual(kind):
    given, type_ = case(18, MOST), jax.sharding.AxisType[kind]
    given = given._replace(operand=given.operand[..., :2], output=given.output[..., :2])
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(type_, type_))

    def call(*arguments, check=False):
        mine = (each[0] for each in arguments)
        return jc.ragged_all_to_all(
            *mine, axis_name="x", largest=MOST, schedule="direct", check=check
        )[None]

    def on(function):
        return jax.shard_map(
            function, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}
        )

    with jax.set_mesh(mesh):
        specs = [P("x", None, "y")] * 2 + [P("x")] * 4
        placed = [
            jax.device_put(each, jax.NamedSharding(mesh, spec))
            for each, spec in zip(given, specs, strict=True)
        ]
        np.testing.assert_array_equal(jax.jit(on(call))(*placed), expected(given))
        with pytest.raises(CollectiveError, match="all axes of the mesh are manual"):
            jax.eval_shape(on(functools.partial(call, check=True)), *placed)
