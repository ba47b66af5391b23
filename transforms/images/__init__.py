"""Checks and changes images and masks: from a file's bytes to the bytes that are stored."""
