"""Benchmarks of the trainer beside other training loops: `make bench`, docs/evidence.md."""
