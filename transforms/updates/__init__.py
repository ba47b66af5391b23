"""Compares the input with a snapshot, and continues the snapshot."""
