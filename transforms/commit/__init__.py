"""What makes a staged dataset the committed one: checks, the right to commit, and the order of events."""
