"""Comparisons between commits: whether training became slower, and its speed over time."""

ALLOWED = 1.15
"""Default of `photofinish gate --slower`."""
