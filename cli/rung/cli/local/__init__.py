"""One machine: `rung up`, `rung down`, the data folder, the demonstration."""
