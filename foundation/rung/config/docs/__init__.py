"""The reference of the experiment file, made from its sections."""
