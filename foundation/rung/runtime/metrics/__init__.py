"""Metrics of a process, for Prometheus."""
