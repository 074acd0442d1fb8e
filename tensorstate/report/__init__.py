"""Describes plans: as text, as an interactive page, by established names, and against HLO.

In reading order: ``text``, ``step_events``, ``alternatives``, ``web_page``,
``hlo_check``.
"""
