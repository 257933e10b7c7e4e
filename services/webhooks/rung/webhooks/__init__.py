"""Tells subscribers of what happens: webhooks, messages to Slack and Teams, e-mail."""
