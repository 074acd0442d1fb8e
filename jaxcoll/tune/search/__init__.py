"""The search of a configuration space, in reading order: ``base`` (the face that studies' searches
share), ``racing``, ``grid``, ``forms`` and ``fitted`` (models fitted to few measurements).
"""
