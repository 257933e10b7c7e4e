"""A small network of plain TensorFlow on scikit-learn's handwritten digits."""

from pathlib import Path

import tensorflow as tf
from sklearn.datasets import load_digits

from rung import tensorflow as rt


class Network(tf.Module):
    def __init__(self, hidden):
        super().__init__()
        start = tf.initializers.GlorotUniform()
        self.weights = [tf.Variable(start(shape)) for shape in ((64, hidden), (hidden, 10))]
        self.biases = [tf.Variable(tf.zeros(size)) for size in (hidden, 10)]
        self.momenta = [tf.Variable(tf.zeros_like(v), trainable=False) for v in self.trained]

    @property
    def trained(self):
        return [*self.weights, *self.biases]

    def __call__(self, images):
        hidden = tf.nn.relu(images @ self.weights[0] + self.biases[0])
        return hidden @ self.weights[1] + self.biases[1]

    def apply(self, gradients, rate):
        for variable, momentum, gradient in zip(
            self.trained, self.momenta, gradients, strict=True
        ):
            momentum.assign(0.9 * momentum + gradient)
            variable.assign_sub(rate * momentum)


def errors(outputs, labels):
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))
    right = tf.argmax(outputs, 1, output_type=labels.dtype) == labels
    return {"loss": loss, "accuracy": tf.reduce_mean(tf.cast(right, tf.float32))}


def main():
    with rt.init(config=Path(__file__).with_name("experiment.yaml")) as run:
        images, labels = load_digits(return_X_y=True)
        data = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels))
        train = data.skip(400).shuffle(1400).batch(run.hparams["global_batch_size"])
        network = Network(run.hparams["hidden"])

        def validate():
            return training.mean(data.take(400).batch(100), lambda x, y: errors(network(x), y))

        training = rt.Training(run, train, keep={"network": network}, validate=validate)

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                metrics = errors(network(x), y)
            gradients = tape.gradient(metrics["loss"], network.trained)
            network.apply(training.averaged(gradients), run.hparams["lr"])
            return metrics

        for x, y in training:
            training.report(step(x, y))


if __name__ == "__main__":
    main()
