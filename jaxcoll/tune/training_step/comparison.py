"""Comparison with ``jax.lax``: each candidate once, on test buffers, never on training state.

One program per task holds all its candidates. Buffers hold small whole numbers, whose sums are
exact in every dtype and order, so results must be equal bit by bit.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jaxcoll.collective import ROOTED
from jaxcoll.execute.choice import active
from jaxcoll.task import Task
from jaxcoll.tune.spaces.config import Config
from jaxcoll.tune.training_step.programs import compiled

_NATIVE = Config({"algorithm": "native"})


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """A call of a task as a step contains it.

    Attributes:
        run_by: runs the call by a configuration.
        shape: of a rank's operand.
        mesh: names and sizes of the axes of the mesh around the call.
    """

    task: Task
    run_by: active.RunBy
    shape: tuple[int, ...]
    mesh: tuple[tuple[str, int], ...]


class Recorder:
    """Runs every task by the default and notes the first call of each."""

    def __init__(self) -> None:
        self.found: dict[Task, Occurrence] = {}

    def run(self, task: Task, x: jax.Array, run_by: active.RunBy) -> jax.Array:
        """The result by the default."""
        mesh = jax.sharding.get_abstract_mesh()
        sizes = tuple(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
        self.found.setdefault(task, Occurrence(task, run_by, x.shape, sizes))
        return run_by(x, None)


class Comparison:
    """Compares the candidates of a task with ``jax.lax``.

    Args:
        call: the task's call.
        configs: the candidates; None is the default.

    Attributes:
        refused: candidates that cannot be traced or change the type of the result, and why.
        is_native: whether the default is ``jax.lax`` itself.
    """

    def __init__(self, call: Occurrence, configs: Sequence[Config | None]):
        names = tuple(name for name, _ in call.mesh)
        sizes = tuple(size for _, size in call.mesh)
        self._call, self._names = call, names
        self._mesh = Mesh(np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes), names)
        rooted = call.task.collective in ROOTED
        reference = self._type(None if rooted else _NATIVE)
        self.is_native = not rooted and self._traced(None) == self._traced(_NATIVE)
        self.refused: dict[int, str] = {}
        for i, config in enumerate(configs):
            try:
                found = self._type(config)
            except Exception as error:  # whatever tracing a candidate raises
                self.refused[i] = f"it cannot be traced: {error}"
                continue
            if (found.shape, found.dtype) != (reference.shape, reference.dtype):
                self.refused[i] = (
                    f"it returns {found.dtype}{found.shape}, and jax.lax "
                    f"{reference.dtype}{reference.shape}"
                )
        self._kept = [i for i in range(len(configs)) if i not in self.refused]
        self._configs = configs
        self._equal: dict[int, bool] = {}

    def compile(self) -> None:
        """Compile the program of all candidates that were not refused."""
        program = jax.jit(self._sharded(self._compare, PartitionSpec(self._names)))
        self._compiled = compiled(program.lower(np.int32(0)))

    def equal(
        self, candidate: int, wait: Callable[[jax.Array], object] = jax.block_until_ready
    ) -> bool:
        """Whether a candidate's result equals that of ``jax.lax`` on every rank.

        It runs once, however often it is asked for.

        Args:
            wait: blocks until an array is computed, or raises.
        """
        if candidate not in self._equal:
            agrees = self._compiled(np.int32(self._kept.index(candidate)))
            wait(agrees)
            self._equal[candidate] = all(
                bool(np.asarray(shard.data).all()) for shard in agrees.addressable_shards
            )
        return self._equal[candidate]

    # ------------------------------------------------------------------ traced

    def _type(self, config: Config | None) -> jax.ShapeDtypeStruct:
        return jax.eval_shape(self._program(config), np.int32(0))

    def _traced(self, config: Config | None) -> str:
        return str(jax.make_jaxpr(self._program(config))(np.int32(0)))

    def _program(self, config: Config | None):
        return self._sharded(lambda _: self._run(self._operand(), config), PartitionSpec())

    def _sharded(self, function, out_specs):
        return jax.shard_map(
            function,
            mesh=self._mesh,
            in_specs=PartitionSpec(),
            out_specs=out_specs,
            check_vma=False,
        )

    def _compare(self, which: jax.Array) -> jax.Array:
        x = self._operand()
        native = None if self._call.task.collective in ROOTED else _NATIVE
        wanted = self._run(x, native)
        branches = [functools.partial(self._run, config=self._configs[i]) for i in self._kept]
        return jnp.array_equal(lax.switch(which, branches, x), wanted)[None]

    def _run(self, x: jax.Array, config: Config | None) -> jax.Array:
        return self._call.run_by(x, config)

    def _operand(self) -> jax.Array:
        """Whole numbers 0, 1 and 2 that differ from rank to rank."""
        rank = lax.axis_index(self._names)
        flat = jnp.arange(int(np.prod(self._call.shape)), dtype=jnp.int32)
        drawn = (flat * 7 + rank * 5 + flat // 3 * rank) % 3
        return drawn.astype(self._call.task.dtype).reshape(self._call.shape)
