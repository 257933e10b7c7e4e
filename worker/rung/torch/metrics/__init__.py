"""The metrics of a trial: validation, reports, reducers, TensorBoard."""
