"""Every optimizer and transformation of ``optax`` and ``optax.contrib``, made from their names.

The list is that of the two namespaces as they are installed: names that a new release adds are
tested too, or ask for their arguments here.
"""

from __future__ import annotations

import functools
import inspect

import jax
import jax.numpy as jnp
import optax
import optax.contrib
import optax.tree

# What gives no transformation, though its type or its methods do not say so.
OTHERS = {
    "WrappedSchedule",
    *("bias_correction", "matrix_inverse_pth_root", "update_infinity_moment", "update_moment"),
    *("sigmoid_binary_cross_entropy", "update_moment_per_elem_norm", "schedule_free_eval_params"),
}


def is_matrix(tree):
    """A mask: by shape, as a callable."""
    return jax.tree.map(lambda x: jnp.ndim(x) > 1, tree)


def by_rank(tree):
    """Labels: by shape, as a callable."""
    return jax.tree.map(lambda x: "matrix" if jnp.ndim(x) > 1 else "other", tree)


def each_a_matrix(tree):
    """What ``muon`` takes of the shapes of matrices."""
    return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(), tree)


def every_other_step(step, *_, **__):
    return step % 2 == 0


PARTS = {"matrix": optax.adam(0.05), "other": optax.sgd(0.05, momentum=0.9)}

# By the names of arguments that have no default.
ARGUMENTS = {
    "learning_rate": 0.05,
    "clipping": 0.1,
    "eta": 0.1,
    "gamma": 0.55,
    "inner": optax.adam(0.05),
    "tx": optax.adam(0.05),
    "optimizer": optax.adam(0.05),
    "base_optimizer": optax.adam(0.05),
    "fast_optimizer": optax.adam(0.05),
    "adv_optimizer": optax.sgd(0.01),
    "max_consecutive_errors": 2,
    "max_delta": 0.05,
    "threshold": 0.05,
    "max_norm": 0.5,
    "should_transform_fn": every_other_step,
    "decay": 0.9,
    "sync_period": 3,
    "slow_step_size": 0.5,
    "mask": is_matrix,
    "freeze_mask": is_matrix,
    "measure": optax.tree.norm,
    "measure_name": "norm",
    "transforms": PARTS,
    "param_labels": by_rank,
    "step_size": 0.1,
    "step_size_fn": optax.linear_schedule(0.1, 0.01, 15),
    "max_backtracking_steps": 8,
    "max_linesearch_steps": 8,
    "f": lambda updates, params: jax.tree.map(lambda u, p: u - 0.1 * p, updates, params),
    "l2_norm_clip": 0.5,
    "noise_multiplier": 0.1,
    "seed": 3,
}

# Where that does not do: those whose arguments are not of the usual meaning, and those that behave
# as others do unless an option is set.
MADE = {
    "optax.MultiSteps": lambda: optax.MultiSteps(optax.adam(0.05), 3),
    "optax.adafactor": lambda: optax.adafactor(0.05, min_dim_size_to_factor=4),
    "optax.add_decayed_weights": lambda: optax.add_decayed_weights(0.1, mask=is_matrix),
    "optax.adamw": lambda: optax.adamw(0.05, weight_decay=0.1, mask=is_matrix),
    "optax.chain": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.05)),
    "optax.named_chain": lambda: optax.named_chain(
        ("clip", optax.clip_by_global_norm(0.5)), ("adam", optax.adam(0.05))
    ),
    "optax.freeze": lambda: optax.freeze(
        {"kernel": True, "even": False, "layer": False, "scale": True, "empty": True}
    ),
    "optax.inject_hyperparams": lambda: optax.inject_hyperparams(optax.adamw)(
        optax.linear_schedule(0.05, 0.01, 15), weight_decay=0.1, mask=is_matrix
    ),
    "optax.inject_stateful_hyperparams": lambda: optax.inject_stateful_hyperparams(optax.adam)(
        optax.linear_schedule(0.05, 0.01, 15)
    ),
    "optax.scale_by_lbfgs": lambda: optax.chain(optax.scale_by_lbfgs(), optax.scale(-0.05)),
    "optax.measure_with_ema": lambda: optax.measure_with_ema(
        functools.partial(jax.tree.map, jnp.square), 0.9
    ),
    "optax.monitor": lambda: optax.monitor({"norm": optax.tree.norm}),
    "optax.scale_by_factored_rms": lambda: optax.scale_by_factored_rms(min_dim_size_to_factor=4),
    "optax.stateless_with_tree_map": lambda: optax.stateless_with_tree_map(
        lambda u, p: u - p / 8  # type: ignore[operator]
    ),
    "optax.contrib.dog": lambda: optax.contrib.dog(1.0),
    "optax.contrib.dowg": lambda: optax.contrib.dowg(1.0),
    "optax.contrib.hutchinson_estimator_diag_hessian": (
        optax.contrib.hutchinson_estimator_diag_hessian
    ),
    "optax.contrib.galore": lambda: optax.contrib.galore(0.05, rank=2, update_proj_gap=5),
    "optax.contrib.scale_by_galore": lambda: optax.contrib.scale_by_galore(2, 5),
    "optax.contrib.scale_by_muon": lambda: optax.masked(
        optax.contrib.scale_by_muon(weight_dimension_numbers=each_a_matrix), is_matrix
    ),
    "optax.contrib.sam": lambda: optax.contrib.sam(optax.adam(0.05), optax.sgd(0.01)),
}


def names() -> list[str]:
    """Names of functions and classes that make transformations, with those of unknown results."""
    found = []
    for space in (optax, optax.contrib):
        for name, made in sorted(vars(space).items()):
            if name.startswith("_") or name in OTHERS or not callable(made):
                continue
            if inspect.isclass(made):
                is_one = callable(getattr(made, "update", None)) and not issubclass(made, tuple)
            elif not inspect.isfunction(made):  # an alias of types
                is_one = False
            else:
                returns = inspect.signature(made).return_annotation
                is_unknown = returns is inspect.Signature.empty
                is_one = "GradientTransformation" in str(returns) or is_unknown
            if is_one:
                found.append(f"{space.__name__}.{name}")
    return found


def make(name: str):
    """The transformation of a name.

    Raises:
        KeyError: it has an argument that nothing here says how to give.
    """
    if name in MADE:
        return MADE[name]()
    space, _, function = name.rpartition(".")
    made = getattr(optax if space == "optax" else optax.contrib, function)
    needed = [
        key
        for key, parameter in inspect.signature(made).parameters.items()
        if parameter.default is parameter.empty
    ]
    unknown = [key for key in needed if key not in ARGUMENTS]
    if unknown:
        raise KeyError(
            f"optax has {name} with the arguments {unknown}: say in {__name__} how it is made"
        )
    return made(**{key: ARGUMENTS[key] for key in needed})
