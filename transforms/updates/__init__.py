"""What an update does with a snapshot: compares the input with it, and continues it."""
