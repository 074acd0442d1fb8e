"""Configurations of a collective, in reading order: ``config`` (parameters, configurations),
``space`` (subspaces and their union), ``nccl_space`` (AutoCCL's Table 2), ``backend_space`` (of a
task on a JAX backend), ``candidates`` (the few that the online tuner tries).
"""
