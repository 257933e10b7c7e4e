"""Objects of runs: uploads and downloads of checkpoints, code, data sources."""
