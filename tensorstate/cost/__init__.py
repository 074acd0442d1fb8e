"""The cost of decisions: time and memory of a training step per device.

Each law is written once, here, and read by both the evaluator and the solver. In reading order:
``reshard_plan`` (the unknowns of a search, the places where a tensor is resharded, and the cheapest
collectives for it), ``memory`` (bytes at every program point), ``step_tasks``, ``loop_schedule``
and ``timeline`` (the tasks of a step, loop bodies in time, the step in time), ``cost`` (all of
these together with compute; the options and the result of a search).
"""
