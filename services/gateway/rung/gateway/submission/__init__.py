"""Submission: what is checked and resolved before an experiment is on record."""
