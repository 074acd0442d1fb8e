"""How a call is run, in reading order: ``defaults`` (schedules of few rounds), ``stated`` (network
and machine), ``measured_costs`` (the charges of this machine), ``cheapest`` (of ``jax.lax`` and the
schedules), ``explain`` (why), ``selection`` (by the user's ``schedule=``), ``configured`` (by a
configuration), ``transports`` (how permutes are carried out), ``active`` (the configurations of a
trace).
"""
