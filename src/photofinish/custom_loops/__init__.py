"""Scripts with a custom training loop: timed steps, and the command that runs a script."""
