"""The machine: what it is, how busy it is, and which device trains."""
