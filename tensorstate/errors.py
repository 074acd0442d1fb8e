"""The error of the package: a ``ValueError`` that says what was given, expected, and what to do."""

from jaxcoll.errors import JaxcollError


class PlanError(JaxcollError):
    """A training step, a mesh, a pin or a limit for which no plan can be made."""
