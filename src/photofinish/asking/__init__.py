"""`photofinish ask`: watch a part of any script's training, and answer for all of it."""
