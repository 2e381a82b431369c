"""The report: findings as words, tables and pictures."""
