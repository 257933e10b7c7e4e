"""Commands for the users of an installation: submit, watch, compare, download."""
