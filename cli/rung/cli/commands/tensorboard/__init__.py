"""`rung tensorboard`: curves as event files that TensorBoard reads."""
