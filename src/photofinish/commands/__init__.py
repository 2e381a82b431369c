"""The command `photofinish`, which the Makefile calls too."""
