"""What the stage plan makes of params.yaml: a file for each experiment, data set and device."""
