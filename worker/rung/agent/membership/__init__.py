"""The agent in its pool: joins, heartbeats, placements, suspension, preemption notices."""
