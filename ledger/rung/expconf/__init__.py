"""Placeholder until the package is written."""
