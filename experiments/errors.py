"""The errors of experiments: the command prints them as one sentence, without a traceback."""


class ConfigError(ValueError):
    """A configuration that names what does not exist, or a value that cannot be."""


class CheckError(ValueError):
    """A check that an experiment makes of its own results has failed."""
