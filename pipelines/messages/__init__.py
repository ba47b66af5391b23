"""What a command tells people and platforms: progress, tables, logs, its summary, metrics and events."""
