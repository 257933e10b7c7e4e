"""The agent: one process per node that starts trials and publishes their events."""
