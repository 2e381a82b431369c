"""One training as a stage: from split to record.

`stage` tells its course, `run` what was asked for, `train` what its processes do, with what `setup` makes for them.
"""
