"""Commits a staged dataset: checks, the right to commit, and the order of events."""
