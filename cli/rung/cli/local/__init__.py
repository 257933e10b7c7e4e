"""One machine: `rung up`, `rung down`, `rung status`, the demonstration."""
