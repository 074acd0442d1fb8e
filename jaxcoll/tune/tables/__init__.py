"""Measurements and decisions, in reading order: ``decision``, ``table``, its JSON (``table_file``)
and text (``table_text``), ``in_use`` (calls that run by it).
"""
