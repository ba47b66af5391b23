"""Beam transforms of imagebeam: the steps of the pipeline, what they share, and folders with what each step is made of.

Importing this package imports no Beam.
"""
