"""Measurements and decisions, in reading order: ``decision``, ``table`` (and its text), its JSON
(``table_file``), ``in_use`` (calls that run by it).
"""
