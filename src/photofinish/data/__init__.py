"""From a source to a packed split, which then is only ever read."""

MANIFEST = "manifest.json"
"""describes a packed split; its name is here, where reading it takes no NumPy"""
