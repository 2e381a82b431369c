"""The schema of params.yaml: what a user can set, of which type, within which limits.

Names and defaults follow PyTorch where PyTorch has them. Nothing here imports torch: `plan` and `compare`
read settings in milliseconds.
"""
