"""Messages of a command to people and platforms: progress, tables, logs, its summary, metrics and events."""
