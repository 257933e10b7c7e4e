"""YAML 1.2 with the line of each value."""
