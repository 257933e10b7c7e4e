"""Audits: decisions and imports on record are compared with what the facts give again."""
