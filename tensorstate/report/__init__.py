"""Plans in words: as text, as a web page, by the names of known strategies, against HLO.

In reading order: ``text``, ``web_page``, ``parallelism_names``, ``hlo_check``.
"""
