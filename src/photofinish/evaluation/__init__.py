"""Test metrics of the trained networks."""
