"""Benchmarks of the trainer beside other training loops: `make bench`, benchmarks/README.md."""
