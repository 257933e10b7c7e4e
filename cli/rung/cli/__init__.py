"""The command line: `rung up`, `rung submit`, `rung show` and the rest.

One module per command or family of commands, imported when it is called (`group`); `link` says
which Rung is meant, `output` prints tables and JSON, `exit_code` has what scripts rely on.
"""
