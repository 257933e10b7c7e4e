"""One run on this agent: its processes, their messages, its end."""
