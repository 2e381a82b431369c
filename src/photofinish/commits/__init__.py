"""Between commits: whether training became slower, and its speed over time."""
