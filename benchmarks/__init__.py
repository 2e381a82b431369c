"""Benchmarks of the trainer beside other training loops: `make bench`, docs/performance.md."""
