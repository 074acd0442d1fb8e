"""Plans for other processes, and for other libraries.

In reading order: ``specs`` (trees of ``PartitionSpec``), ``plan_file`` and ``plan_json`` (plans as
files), ``constrained_step`` (plans on whole arrays), ``axis_rules``.
"""
