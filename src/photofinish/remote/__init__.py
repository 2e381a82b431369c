"""Other machines: a head that spreads training runs, and workers that do them."""

HEAD = "tcp://127.0.0.1:8786"
