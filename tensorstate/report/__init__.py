"""Describes plans: as text, as an interactive page, by established names, and against HLO.

In reading order: ``parallelism``, ``text``, ``layers``, ``dearest``, ``alternatives``,
``web_page``, ``hlo_check``.
"""
