"""Limits on the connections of an HTTP server."""
