"""The version of imagebeam. `setup.py` reads it from here as text."""

__version__ = "0.1.0"
