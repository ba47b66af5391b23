"""Presets: one YAML file per kind of dataset, each line with a reason."""
