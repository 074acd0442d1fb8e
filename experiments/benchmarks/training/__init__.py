"""The online tuner in a training script: ``runs`` (network and runs) and ``tune_training``."""
