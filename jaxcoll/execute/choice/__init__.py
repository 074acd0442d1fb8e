"""How a call is run, in reading order: ``configured`` (schedules of few rounds, and by the
configurations of a trace), ``stated`` (network and machine, and how permutes are carried out),
``measured_costs`` (the charges of this machine), ``cheapest`` (of ``jax.lax`` and the schedules,
and why), ``selection`` (by the user's ``schedule=``).
"""
