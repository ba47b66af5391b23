"""What images can be listed from: one module per kind of source, pure functions without Beam."""
