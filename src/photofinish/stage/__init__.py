"""A stage's process: its rank, locks, signals and exit codes."""
