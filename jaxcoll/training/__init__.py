"""Training: gradients and optimizer states reduced by schedules; public as ``jc.optax``.

Read in this order: ``transforms`` (the public gradient transformations, and sums that advance
during the backward pass), ``leaf_sums`` (gradients of a rank's own part), ``sharded_optimizer``
(ZeRO). Buckets of gradients are ``execute.buckets``.
"""
