"""The machine: CPU, accelerators, fingerprint, memory, load."""
