"""Comparisons between commits: whether training became slower."""

ALLOWED = 1.15
"""Default of `photofinish gate --slower`, by hand. benchmarks/gate_noise.py plants 1.3."""
