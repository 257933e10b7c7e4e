"""The agent: one process per node that starts trials, and brings to the ledger what they say."""
