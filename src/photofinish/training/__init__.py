"""The training loop with its batches, steps, optimizers, devices and checkpoints."""
