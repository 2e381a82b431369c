"""Data: fetched raw by a source, then packed and split once, then only ever read."""

MANIFEST = "manifest.json"
"""describes a packed split; its name is here, where reading it takes no NumPy"""
