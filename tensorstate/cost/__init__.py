"""The cost of decisions: time and memory of a training step per device.

Each law is written once, here, and read by both the evaluator and the solver. In reading order:
``decisions`` (what a search decides), ``reshard_passes`` (where a tensor is resharded),
``reshard_plan`` (the cheapest collectives for it), ``memory_terms`` (what a tensor adds to memory),
``memory`` (bytes at every program point), ``cost`` (all of it, with compute), ``result`` (what a
search is asked and returns).
"""
