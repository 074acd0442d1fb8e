"""The context of a trace, on which JAX's types of arrays depend in addition to the step.

Under Explicit axes arrays have shardings in their types, derived from the arguments, and shardings
that a step asks for need ``jax.set_mesh``. Traced in another context, the same step has other pins.
So a plan keeps its context, and its step is always traced in this context again.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec


@dataclasses.dataclass(frozen=True)
class TraceContext:
    """The mesh and the types of the arguments.

    Attributes:
        mesh: the mesh of ``jax.set_mesh``, or else that of the arguments; empty if there is none.
        is_set: whether it is the mesh of ``jax.set_mesh``.
        types: for every leaf of the arguments its sharding in its type, ``None`` if it has none.
    """

    mesh: AbstractMesh
    is_set: bool
    types: tuple[PartitionSpec | None, ...]

    @classmethod
    def here(cls, args: Any) -> TraceContext:
        """The caller's context, with arguments as ``jax.ShapeDtypeStruct``."""
        shardings = [leaf.sharding for leaf in jax.tree.leaves(args)]
        types = tuple(None if sharding is None else sharding.spec for sharding in shardings)
        mesh: Any = jax.sharding.get_abstract_mesh()
        if not mesh.empty:
            return cls(mesh, True, types)
        # Without ``set_mesh``, arguments of Explicit axes still bring their mesh, concrete or not.
        given = (getattr(s.mesh, "abstract_mesh", s.mesh) for s in shardings if s is not None)
        return cls(next(given, mesh), False, types)

    def typed(self, args: Any) -> Any:
        """The arguments with the shardings of this context in their types, instead of their own.

        Arguments of another step, to which these do not fit, have none.
        """
        leaves, tree = jax.tree.flatten(args)
        types = self.types if len(self.types) == len(leaves) else (None,) * len(leaves)
        pairs = zip(leaves, types, strict=True)
        return tree.unflatten([self._typed(leaf, spec) for leaf, spec in pairs])

    def _typed(self, leaf: jax.ShapeDtypeStruct, spec: PartitionSpec | None):
        untyped = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        if spec is None:
            return untyped
        sharding = NamedSharding(self.mesh_here, spec)
        try:
            sharding.shard_shape(leaf.shape)
        except ValueError:  # the sharding does not divide an argument of another step
            return untyped
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    @property
    def mesh_here(self) -> AbstractMesh:
        """The mesh; the one of the caller's ``jax.set_mesh`` if it is the same on other devices.

        For JAX, abstract meshes of different kinds of devices differ, so a sharding of the user's
        own mesh does not fit a mesh from a file.
        """
        here: Any = jax.sharding.get_abstract_mesh()
        return here if _axes(here) == _axes(self.mesh) else self.mesh

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Trace in the context in which the step was traced."""
        # The empty mesh is entered, too: a step that was planned outside of any mesh may be traced
        # again after its user has called ``set_mesh``, and would have other types there.
        mesh = self.mesh_here if self.is_set else AbstractMesh((), ())
        if mesh == jax.sharding.get_abstract_mesh():
            yield
            return
        with jax.sharding.use_abstract_mesh(mesh):
            yield


OUTSIDE = TraceContext(AbstractMesh((), ()), False, ())
"""The context outside of any mesh, with arguments without shardings in their types."""


def _axes(mesh: AbstractMesh) -> tuple[tuple[str, int, AxisType], ...]:
    return tuple(zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True))
