"""Owns memories: write, read, update, forget, search."""
