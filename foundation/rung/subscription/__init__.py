"""Subscriptions of webhooks: what a document of one says, where it may lead, how it is sealed.

The gateway checks and seals documents, the service `webhooks` reads them.
"""
