"""The gateway's read models: a module for each projection, and `read_models` for what is asked."""
