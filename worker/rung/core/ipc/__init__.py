"""The interface of trial processes and agents: messages, environment variables, staged folder."""
