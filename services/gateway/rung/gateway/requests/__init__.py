"""Requests: parameters, bodies, and the facts that they append."""
