"""The outbox: events on disk until the ledger has them, and the publisher that appends them."""
