"""Documents that are made from the event records."""
