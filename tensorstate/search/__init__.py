"""Searches for the decisions that cost least."""
