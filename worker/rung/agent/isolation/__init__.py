"""Isolation of trials: user ids, namespaces and mounts of their own."""
