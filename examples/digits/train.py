"""A four-layer convolutional network on handwritten digits.

Under Rung, hyperparameters, length and seed come from the search; `python train.py` alone trains
once, with those of single.yaml.
"""

from pathlib import Path

import torch
from data import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from rung import torch as rt


def network(channels: int, kernel: int, dropout: float) -> nn.Module:
    """Three convolutions and a linear layer."""

    def convolution(inputs: int, outputs: int) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *convolution(1, channels),
        *convolution(channels, channels),
        nn.MaxPool2d(2),
        *convolution(channels, 2 * channels),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(2 * channels, 10),
    )


class Digits(rt.Trial):
    def __init__(self, context):
        self.context = context
        self.training, self.validation = load_digits()
        self.model = context.wrap_model(network(**context.get_hparam("model")))
        chosen = context.get_hparam("optimizer")
        kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[chosen["name"]]
        self.optimizer = context.wrap_optimizer(
            kind(self.model.parameters(), lr=chosen["lr"], weight_decay=chosen["weight_decay"])
        )
        self.smoothing = context.get_hparam("label_smoothing")

    def build_training_data_loader(self):
        size = self.context.get_per_slot_batch_size()
        return DataLoader(self.training, batch_size=size, shuffle=True, drop_last=True)

    def build_validation_data_loader(self):
        return DataLoader(self.validation, batch_size=200)

    def train_batch(self, batch, epoch_idx, batch_idx):
        images, labels = batch
        loss = cross_entropy(self.model(images), labels, label_smoothing=self.smoothing)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        images, labels = batch
        scores = self.model(images)
        wrong = scores.argmax(1) != labels
        return {"error": wrong.float().mean(), "loss": cross_entropy(scores, labels)}


if __name__ == "__main__":
    torch.set_num_threads(1)  # a slot is one core
    with rt.init(config=Path(__file__).with_name("single.yaml")) as context:
        rt.Trainer(Digits(context), context).fit()
