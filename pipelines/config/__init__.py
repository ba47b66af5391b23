"""The config of a job: its models, section by section, and its YAML. `model` puts them together."""
