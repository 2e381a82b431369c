"""Warm-up, and measurements of a trained network's steps."""
