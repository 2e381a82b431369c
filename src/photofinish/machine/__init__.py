"""What this machine is and how busy: CPU, accelerators, fingerprint, memory, load, energy."""
