"""Serializers: records of the HTTP API from rows of the projections."""
