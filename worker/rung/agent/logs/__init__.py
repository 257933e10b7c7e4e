"""Logs of trials: pipes, lines and their levels, quota."""
