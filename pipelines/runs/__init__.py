"""A run on an output: its lock, its job at a service, and what it leaves behind."""
