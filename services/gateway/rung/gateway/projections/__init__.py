"""The gateway's read models: a module for each projection; `read_models` has the table of them."""
