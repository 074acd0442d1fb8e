"""What decisions cost: time and memory of a training step on one device.

In reading order: ``reshard_plan`` (how tensors are resharded under decisions), ``memory`` (bytes at
every program point), ``cost`` (both, with compute), ``result`` (what a search returns).
"""
