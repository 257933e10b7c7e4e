"""The Core API."""
