"""The formats that images are read from: one module each, with its options, its source and its parser."""
