"""Machines that are not here: ``targets`` starts a process per target, ``tpu_slices`` has rates."""
