"""One measurement of an experiment, in a stage of its own, before the training."""
