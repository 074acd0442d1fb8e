"""Describes plans: as text, as a web page, by established names, and against HLO.

In reading order: ``text``, ``web_page``, ``parallelism_names``, ``hlo_check``.
"""
