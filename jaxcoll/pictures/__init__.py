"""Shared by figures, pages and notebooks: where vertices stand (``places``), HTML (``markup``).

It stands below the network itself, whose table in a notebook holds a drawing, and so takes columns.
"""
