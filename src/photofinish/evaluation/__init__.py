"""Test metrics of the trained networks: a judge for each kind of task."""
