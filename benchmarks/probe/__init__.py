"""The parts of benchmarks/gpu_probe.py."""
