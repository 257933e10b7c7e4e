"""Resource usage of runs, stack dumps, and the agent's own metrics."""
