"""Ways of a plan out of this process and this library.

In reading order: ``specs`` (trees of ``PartitionSpec``), ``plan_file`` and ``plan_json`` (plans as
files), ``factored`` and ``constrained_step`` (plans on whole arrays), ``axis_rules``.
"""
