"""Where batches come from, and in which order."""
