"""Searches for the decisions that cost least.

In reading order: ``linear_program`` (the model builder), ``variables``, ``memory_constraints`` and
``formulation`` (the mixed-integer program), ``exact`` (its solution), ``submesh`` and
``coordinate_descent`` (one mesh axis at a time), ``auto`` (which of them runs).
"""
