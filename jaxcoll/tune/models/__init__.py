"""The time of a collective by its resources, in reading order: ``model`` (AutoCCL's equations 1 to
5), ``fit`` (to few measurements), ``ensemble`` and ``peaks`` (several fits, for their uncertainty:
of the equations, and of elliptical peaks), ``landscape`` (made-up machines to compare searches on).
"""
