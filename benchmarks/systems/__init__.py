"""The five tutorials' systems on the devices here: `python -m benchmarks.systems`."""
