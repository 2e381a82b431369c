"""Scripts with their own training loop: how they run, are watched and are recorded."""
