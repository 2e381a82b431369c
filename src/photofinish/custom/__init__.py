"""Custom code that params.yaml names: how it is found, what it imports, and how it runs."""
