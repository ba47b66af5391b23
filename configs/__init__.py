"""Holds the presets: one YAML file per kind of dataset, with a reason for each choice."""
