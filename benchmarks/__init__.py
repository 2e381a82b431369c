"""How fast the trainer is, side by side with what else a PyTorch user can pick: `make bench`, docs/performance.md."""
