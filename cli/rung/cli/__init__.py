"""The command line: `rung up`, `rung submit`, `rung show` and the others.

One module per command or family of commands, imported when it is called (`group`). `link` has
the options that address an installation, `output` prints, `exit_code` lists the exit codes.
"""
