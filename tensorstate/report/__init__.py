"""Describes plans: as text, as an interactive page, by established names, and against HLO.

In reading order: ``text``, ``web_page``, ``hlo_check``.
"""
