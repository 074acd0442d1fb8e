"""The online tuner in a training script: ``network``, ``runs`` and ``tune_training``."""
