"""How a call is run, in reading order: ``defaults`` (without tuning), ``selection`` (by the user's
``schedule=``), ``configured`` (by a configuration), ``active`` (the configurations of a trace).
"""
