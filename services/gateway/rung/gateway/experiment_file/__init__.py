"""Experiment files as they are submitted: policies, secrets, problems."""
