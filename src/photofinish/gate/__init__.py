"""Comparisons between commits: whether training became slower."""

ALLOWED = 1.15
"""Default of `photofinish gate --slower`."""
