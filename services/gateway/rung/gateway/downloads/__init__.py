"""Downloads: objects and checkpoints as answers, with an integrity check."""
