"""Training loops of one's own in TensorFlow that resume as if nothing had happened.

    import tensorflow as tf
    from rung import tensorflow as rt

    with rt.init(config="experiment.yaml") as run:
        model, optimizer, data = ...
        training = rt.Training(
            run, data, keep={"model": model, "optimizer": optimizer}, validate=validate
        )

        @tf.function
        def step(images, labels):
            with tf.GradientTape() as tape:
                loss = ...
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(training.averaged(gradients), model.trainable_variables)
            return {"loss": loss}

        for images, labels in training:
            training.report(step(images, labels))

The loop yields batch after batch, epoch after epoch. Between two of them the training reports,
validates and checkpoints what is due; it ends at the run's length, or when the run is asked to
leave. On several slots each process gets its part of every batch, and `averaged` makes one
gradient of theirs.
"""

from rung.tensorflow.setup import init
from rung.tensorflow.training import Training
from rung.training.errors import NotResumable

__all__ = ["NotResumable", "Training", "init"]
