"""Scripts with their own training loop: run, watched from outside, and what was seen."""
