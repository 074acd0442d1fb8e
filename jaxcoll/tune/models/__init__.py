"""The time of a collective by its resources, in reading order: ``model`` (AutoCCL's equations 1 to
5), ``least_squares`` (many fits at a time), ``ensemble`` (several fits of the equations, for their
uncertainty), ``peaks`` (the same for forms that know nothing of them: ``elliptical`` and
``separable``), ``fit`` (to few measurements), ``landscape`` (made-up machines to compare searches
on).
"""
