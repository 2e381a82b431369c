"""One measurement of an experiment, as a stage of its own before the training."""
