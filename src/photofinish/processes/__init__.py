"""Processes: how they start, wait for each other, and end before their time."""
