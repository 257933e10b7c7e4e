"""The fork servers: processes with the frameworks imported that fork each trial process."""
