"""The estimate of the time that is left to an experiment."""
