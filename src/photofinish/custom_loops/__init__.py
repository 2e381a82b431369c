"""Scripts with a training loop of their own: timed steps, and the command that runs them."""
