"""Recorded results: the runs of studies in ``docs/experiments``, and the pages made from them.

Read in this order: ``records`` (one JSON file per study, and when it is stale), ``pages`` (tables
in other pages of the documentation). ``experiments.overview`` is the command.
"""
