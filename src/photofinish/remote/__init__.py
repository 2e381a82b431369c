"""Other machines: a head that spreads training runs, and workers that run them."""
