"""Solvers: ``Milp``, ``CoordinateDescent`` and ``Auto`` search the decisions with the least cost.

In reading order: ``formulation`` (the mixed-integer program; its docstring has all constraints as
formulas), ``reshard_constraints`` and ``memory_constraints`` (its parts), ``growing_program`` (rows
and costs that are added while it is solved), ``base`` (the interface of a solver), ``exact`` (the
exact search), ``coordinate_descent`` (one mesh axis at a time), ``auto`` (the choice of a solver).
"""
