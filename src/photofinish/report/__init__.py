"""Findings in, pages and files out."""
