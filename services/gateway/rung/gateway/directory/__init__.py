"""The directory: who there is, what lies where, and who may do what; decided in one order.

`processor` decides on the requests of `rung.events.directory`, `state` is what it folds, and
`directory` is that state in the memory of a gateway.
"""
