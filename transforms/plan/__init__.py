"""Decides what a run writes, from the settings, the listed images and the output, before any image is read."""
