"""Cases: one call each, drawn from a seed."""

from __future__ import annotations

import dataclasses
import math
import random

import jax

OLD = jax.__version_info__ < (0, 11)


FUNCTIONS = (
    *("psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all"),
    "pbroadcast",
)
FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = (
    *FLOATS,
    *("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "bool"),
    *("complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)
MESHES = (
    *((4,), (2, 4), (2, 2), (3,), (8,), (4, 2), (1, 4), (6,)),
    *((2, 2, 2), (2, 2, 2), (2, 1, 2), (2, 2, 4), (2, 3, 2), (4, 2, 1)),
)
TRANSFORMS = (
    *("none", "none", "none", "vjp", "vjp", "jvp", "linearize", "remat", "grad of grad"),
    *("vmap", "vmap spmd", "vmap own axis", "vmap both", "vmap vjp", "jit"),
)
SCHEDULES = (
    *(None, None, "ring", "direct", "bucket", "rhd", "tacos", "forestcoll", "multitree"),
    *("auto", "themis"),
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        sides: sides of the mesh, its axes named x, y, z.
        kinds: mode of each axis that is not manual, "auto" or "explicit".
        manual: the manual axes.
        axis_name: the axes that the collective runs over.
        varies: the manual axes over which the operand differs; it is the same along the others.
        shape: the shape of the operand on a rank.
        operand: "array", "weak" for one whose type is weak, "symbolic" for one whose leading
            dimension is, or a constant: "python", "numpy".
        sharded: for each dimension of the operand the axes that shard it that are not manual.
    """

    function: str
    options: tuple[tuple[str, object], ...]
    sides: tuple[int, ...]
    kinds: tuple[str, ...]
    manual: tuple[str, ...]
    axis_name: str | tuple[str, ...]
    varies: tuple[str, ...]
    check_vma: bool
    x64: bool
    dtype: str
    shape: tuple[int, ...]
    operand: str
    sharded: tuple[tuple[str, ...], ...]
    transform: str
    eager: bool
    schedule: str | None
    lowering: str

    @property
    def names(self) -> tuple[str, ...]:
        """Axes of the mesh."""
        return ("x", "y", "z")[: len(self.sides)]

    @property
    def rest(self) -> tuple[str, ...]:
        """Axes of the mesh that are not manual."""
        return tuple(name for name in self.names if name not in self.manual)

    def size(self, names) -> int:
        """Ranks along some axes."""
        names = (names,) if isinstance(names, str) else names
        return math.prod(self.sides[self.names.index(name)] for name in names)


def draw(seed: int) -> Case:
    """The case of a seed."""
    r = random.Random(seed)
    function = r.choice(FUNCTIONS)
    sides = r.choice(MESHES)
    names = ("x", "y", "z")[: len(sides)]
    manual = names if r.random() < 0.4 else tuple(r.sample(names, r.randint(1, len(names))))
    manual = tuple(name for name in names if name in manual)
    over = tuple(r.sample(manual, r.randint(1, len(manual))))
    axis_name = over[0] if len(over) == 1 and r.random() < 0.8 else over
    n = math.prod(sides[names.index(name)] for name in over)
    varies = manual if r.random() < 0.8 else tuple(a for a in manual if r.random() < 0.5)
    groups = _groups(r, n) if r.random() < 0.12 else None
    dtype = r.choice(FLOATS[:3] if r.random() < 0.4 else DTYPES)
    if function == "pmean" and n & (n - 1):
        dtype = "int32"  # a quotient by n is then a float32 of an exact sum
    shape, options = _options(r, function, n if groups is None else len(groups[0]))
    if groups is not None and function != "pbroadcast":
        options["axis_index_groups"] = groups
    operand = r.choices(
        ("array", "weak", "symbolic", "python", "numpy"), (0.78, 0.06, 0.08, 0.04, 0.04)
    )[0]
    if operand == "python":
        shape = ()
    rest = {a: sides[names.index(a)] for a in names if a not in manual}
    inexact = dtype.startswith(("float", "bfloat", "complex"))
    choices = TRANSFORMS if inexact else [t for t in TRANSFORMS if t in ("none", "jit", "vmap")]
    transform = "none" if operand in ("python", "numpy") else r.choice(choices)
    return Case(
        function=function,
        options=tuple(options.items()),
        sides=sides,
        kinds=_kinds(r, len(sides)),
        manual=manual,
        axis_name=axis_name,
        varies=varies,
        check_vma=r.random() < 0.6,
        x64=r.random() < 0.4,
        dtype=dtype,
        shape=shape,
        operand=operand,
        sharded=_sharded(r, shape, rest),
        transform="none" if operand == "symbolic" and "grad" in transform else transform,
        eager=r.random() < 0.03,
        schedule=r.choice(SCHEDULES),
        lowering=r.choice(("auto", "auto", "ssa", "scan", "pallas")),
    )


def _kinds(r: random.Random, count: int) -> tuple[str, ...]:
    every = r.choice(("auto", "explicit", "mixed"))
    return tuple(
        r.choice(("auto", "explicit")) if every == "mixed" else every for _ in range(count)
    )


def _sharded(r: random.Random, shape, rest: dict[str, int]) -> tuple[tuple[str, ...], ...]:
    """For each dimension the axes that shard it, in any order, most of them somewhere."""
    parts = [1] * len(shape)
    found: list[tuple[str, ...]] = [() for _ in shape]
    for name in r.sample(list(rest), len(rest)):
        fits = [d for d, m in enumerate(shape) if m and m % (parts[d] * rest[name]) == 0]
        if fits and r.random() < 0.85:
            d = r.choice(fits)
            parts[d] *= rest[name]
            found[d] += (name,)
    return tuple(found)


def _groups(r: random.Random, n: int) -> list[list[int]]:
    size = r.choice([d for d in range(1, n + 1) if n % d == 0])
    ranks = r.sample(range(n), n)
    return [ranks[i : i + size] for i in range(0, n, size)]


def _options(r: random.Random, function: str, n: int) -> tuple[tuple[int, ...], dict]:
    """A shape, and options that mostly suit it."""
    sizes = (1, 2, 3, 4, 8) if r.random() < 0.9 else (0, 1, 5)
    shape = [r.choice(sizes) for _ in range(r.randint(0, 3))]
    tiled, negative = r.random() < 0.5, r.random() < 0.3
    options: dict[str, object] = {}

    def place(d: int, ndim: int) -> int:
        return d - ndim if negative else d

    if function == "pbroadcast":
        options["source"] = r.randrange(n)
    if function == "all_gather":
        ndim = len(shape) + (not tiled)
        options |= {"tiled": tiled, "to": r.choice(("varying", "varying", "invarying"))}
        options["axis"] = place(r.randrange(max(1, ndim)), ndim)
    if function in ("psum_scatter", "all_to_all"):
        at = r.randint(0, len(shape))
        suits = r.random() < 0.92
        shape.insert(at, (n * r.choice((1, 2, 3)) if tiled else n) if suits else r.randint(0, 9))
        options["tiled"] = tiled
        if function == "psum_scatter":
            options["scatter_dimension"] = place(at, len(shape))
        else:
            options["split_axis"] = place(at, len(shape))
            options["concat_axis"] = place(r.randrange(len(shape)), len(shape))
    return tuple(shape), options
