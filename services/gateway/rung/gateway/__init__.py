"""The gateway: HTTP, server-sent events and the page, over projections of the ledger."""

from rung.gateway.app import make_app
from rung.gateway.service import serve

__all__ = ["make_app", "serve"]
