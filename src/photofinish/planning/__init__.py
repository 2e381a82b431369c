"""The plan: one file for each experiment, data set, device, and code of a stage."""
