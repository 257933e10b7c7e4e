"""The training and validation data of a trial: order, position, sharding."""
