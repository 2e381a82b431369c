"""The stages train-cpu and train-gpu around the trainer."""
