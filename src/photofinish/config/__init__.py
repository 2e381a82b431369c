"""Settings that params.yaml may contain, and the loader that reads and checks them.

Names and defaults follow PyTorch. Nothing here imports torch, so that `plan` stays quick.
"""
