"""What a call runs, in reading order: ``defaults`` (without tuning), ``selection`` (from the user's
``schedule=``), ``configured`` (by a configuration), ``active`` (the configurations of a trace).
"""
