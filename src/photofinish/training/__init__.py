"""The one trainer, and what it needs."""
