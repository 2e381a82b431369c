"""Data: fetched raw by a source, then packed and split once, then only ever read."""
