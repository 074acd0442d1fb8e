"""The network of ``tune_training``: a VGG in Flax, its gradients summed in six buckets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxcoll as jc
from experiments.models import load_model
from experiments.models.training_step import adamw

_AXIS = "data"
# VGG-19 with about a fourth of its channels, and buckets of a twentieth of DDP's 25 MiB: they are
# six, as in VGG-19 (AutoCCL, Table 1), of 0.4 to 1.3 MB and of six sizes.
_CHANNELS = [[16, 16], [32, 32], [64, 64, 64, 64], [112, 112, 112, 112], [128, 128, 128, 128]]
_HIDDEN = 512
BUCKET_BYTES = 1300 << 10


def network(batch: int, seed: int) -> tuple[Any, Callable[[], tuple]]:
    """A jitted data-parallel training step on all devices, and what makes its first arguments.

    The step donates parameters and optimizer state.

    Args:
        batch: images of 32 x 32 per step, on all ranks together.
        seed: of parameters and images.
    """
    mesh = Mesh(np.array(jax.devices()), (_AXIS,))
    built = load_model(
        "vgg_19", channels=_CHANNELS, hidden=_HIDDEN, classes=100, image_size=32, batch=batch
    )
    summed = jc.optax.all_reduce_gradients(_AXIS, bucket_bytes=BUCKET_BYTES, leaf_order=backward)
    optimizer = optax.chain(summed, adamw())

    def step(params, state, batch):
        own = lax.pcast(params, _AXIS, to="varying")
        loss, gradients = jax.value_and_grad(built.loss_of)(own, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, lax.pmean(loss, _AXIS)

    replicated, split = PartitionSpec(), PartitionSpec(_AXIS)
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(replicated, replicated, split), out_specs=replicated
    )
    params, _, images = built.init(seed)
    values = jax.tree.map(np.asarray, (params, optimizer.init(params), images))

    def first() -> tuple:
        specs = replicated, replicated, split
        return tuple(
            _placed(tree, NamedSharding(mesh, spec))
            for tree, spec in zip(values, specs, strict=True)
        )

    return jax.jit(mapped, donate_argnums=(0, 1)), first


def backward(path: tuple) -> tuple:
    """The order of gradients in a backward pass: last layers first, biases before kernels."""
    part, *numbers, leaf = (key.key for key in path)
    return part != "layers", [-number for number in numbers], leaf != "bias"


def _placed(tree: Any, sharding: NamedSharding) -> Any:
    """Arrays of these values on the devices of all processes."""
    return jax.tree.map(
        lambda leaf: jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__), tree
    )
