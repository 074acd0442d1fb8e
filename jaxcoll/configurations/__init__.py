"""Configurations of a collective and the search for the fastest, without JAX.

In reading order: ``task`` (a collective as a program calls it), ``config`` (parameters,
configurations, AutoCCL's Table 2), ``space`` (subspaces and their union); ``fits`` (models fitted
to few measurements, many at a time, for their uncertainty: AutoCCL's equations 1 to 5), ``peaks``
(forms that know nothing of them); ``base`` (the face of a search), ``grid`` (candidates and fits of
a subspace), ``fitted``.
``jc.tune`` has their public names.
"""
