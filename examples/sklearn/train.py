"""A linear classifier of scikit-learn's handwritten digits, trained epoch by epoch."""

from pathlib import Path

import joblib
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from rung import core


def main() -> None:
    with core.init(config=Path(__file__).with_name("experiment.yaml")) as ctx:
        images, labels = load_digits(return_X_y=True)
        images = images / 16
        epoch = 0
        model = SGDClassifier(
            alpha=ctx.hparams["alpha"],
            learning_rate="constant",
            eta0=ctx.hparams["rate"],
            random_state=np.random.RandomState(ctx.seed % 2**32),  # goes into the checkpoint, too
        )
        if (latest := ctx.checkpoint.download_latest()) is not None:
            with ctx.checkpoint.restore_path(latest) as path:
                epoch, model = joblib.load(path / "model.joblib")

        while not ctx.preempt.should_preempt():
            model.partial_fit(images[400:], labels[400:], classes=range(10))
            epoch += 1
            error = 1 - model.score(images[:400], labels[:400])
            ctx.train.report_validation_metrics(epoch, {"error": error})

        with ctx.checkpoint.store_path(steps_completed=epoch) as (path, _):
            joblib.dump((epoch, model), path / "model.joblib")


if __name__ == "__main__":
    main()
