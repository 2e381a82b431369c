"""One training as a stage: from split to record. Read `train.py` first."""
