"""Lists images: one module per kind of source, without Beam."""
