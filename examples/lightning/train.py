"""A small network in Lightning on scikit-learn's handwritten digits."""

from pathlib import Path

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from rung import lightning as rl


class Digits(lightning.LightningModule):
    def __init__(self, lr, hidden):
        super().__init__()
        self.lr = lr
        self.network = nn.Sequential(
            nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 10)
        )

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return cross_entropy(self.network(images), labels)

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        scores = self.network(images)
        self.log("val_loss", cross_entropy(scores, labels))
        self.log("val_error", (scores.argmax(1) != labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main() -> None:
    with rl.init(config=Path(__file__).with_name("experiment.yaml")) as run:
        images, labels = load_digits(return_X_y=True)
        images, labels = torch.tensor(images / 16).float(), torch.tensor(labels)
        rung = rl.Callback(run)
        trainer = lightning.Trainer(
            max_epochs=100,  # the experiment's length ends it
            accelerator="auto",
            callbacks=[rung],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        trainer.fit(
            Digits(**run.hparams),
            DataLoader(TensorDataset(images[400:], labels[400:]), batch_size=64, shuffle=True),
            DataLoader(TensorDataset(images[:400], labels[:400]), batch_size=400),
            **rung.resume,
        )


if __name__ == "__main__":
    main()
