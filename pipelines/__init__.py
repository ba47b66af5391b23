"""The jobs of imagebeam, one per module, and the command line."""
