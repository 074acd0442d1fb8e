"""The time of a collective by its resources, in reading order: ``model`` (AutoCCL's equations 1 to
5), ``least_squares`` (many fits at a time), ``ensemble`` and ``peaks`` (several fits, for their
uncertainty: of the equations, and of elliptical peaks), ``fit`` (to few measurements),
``landscape`` (made-up machines to compare searches on).
"""
