"""The one loop, and what it needs: batches, steps, optimisers, devices, checkpoints."""
