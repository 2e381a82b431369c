"""Operations of a training step, counted, and the loading of samples, timed by part."""
