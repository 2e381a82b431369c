"""Other machines: a head that spreads what is to be trained, and workers that train it. Nothing of training itself."""
