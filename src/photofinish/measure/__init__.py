"""One measurement of an experiment, as a separate stage before the training."""
