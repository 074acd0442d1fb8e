"""Models to trace, search and train: transformers and classifiers, sizes in ``configs/model``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from experiments.config import build
from experiments.limits import one_of
from experiments.models import classifiers, transformers
from experiments.models.training_step import Model
from experiments.study import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs" / "model"

# The configuration of each family, and the model of one.
FAMILIES: Mapping[str, tuple[type, Callable[..., Model]]] = {
    "mlp": (classifiers.MlpConfig, classifiers.mlp),
    "gpt": (transformers.GptConfig, transformers.gpt),
    "gpt_scan": (transformers.GptScanConfig, transformers.gpt_scan),
    "llama": (transformers.LlamaConfig, transformers.llama),
    "moe": (transformers.MoeConfig, transformers.moe),
    "vgg": (classifiers.VggConfig, classifiers.vgg),
    "vit": (classifiers.VitConfig, classifiers.vit),
}


def build_model(values: Mapping[str, Any], **changed: Any) -> Model:
    """A model from a mapping: its ``family`` and the fields of that family's configuration.

    Args:
        changed: fields that take the place of those of the mapping.

    Raises:
        ConfigError: no such family, or fields that do not fit it.
    """
    fields = {**values, **changed}
    name = fields.pop("family", "")
    one_of("model.family", name, tuple(FAMILIES))
    config, model = FAMILIES[name]
    return model(build(config, fields, "model"))


def load_model(name: str, **changed: Any) -> Model:
    """The model of ``configs/model/NAME.yaml``, with some fields changed.

    Raises:
        ConfigError: no such file, or fields that do not fit.
    """
    path = CONFIGS / f"{name}.yaml"
    known = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    if name not in known:
        raise ConfigError(f"there is no model {name!r}; known: {', '.join(known)}")
    return build_model(yaml.safe_load(path.read_text()), **changed)


__all__ = ["FAMILIES", "Model", "build_model", "load_model"]
