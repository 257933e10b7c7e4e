"""Requests: parameters, bodies, repetition, and what they append."""
