"""Beam transforms of imagebeam, one noun per module. Importing this package imports no Beam."""
