"""`rung ledger`, `rung audit`, `rung verify`: the record itself is moved, read and checked."""
