"""What is measured beside the training itself."""
