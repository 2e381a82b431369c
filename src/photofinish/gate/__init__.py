"""`photofinish gate`: whether training became slower since another commit."""
