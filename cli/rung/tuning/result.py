"""What `rung.tune` returns."""

from typing import Any

from rung.client import Best, ExperimentHandle, Plot


class TuneResult:
    """A search and its result; each attribute asks the server.

    Attributes:
        experiment: the search, for everything else: curves, logs, checkpoints.
    """

    def __init__(self, experiment: ExperimentHandle) -> None:
        self.experiment = experiment

    @property
    def best(self) -> Best:
        """The best trial: `params`, `value`, `checkpoint`, and `download(folder)`."""
        return self.experiment.best()

    @property
    def trials(self) -> Any:
        """A table of the trials: a DataFrame where pandas is installed, else a list of dicts."""
        return self.experiment.trials

    def plot(self, metric: str | None = None) -> Plot:
        """Return a picture of the search, which a notebook shows."""
        return self.experiment.plot(metric)

    def __repr__(self) -> str:
        detail = self.experiment.detail
        if detail.best is None:
            return f"<{self.experiment.id}: {detail.state}, no result>"
        best = self.best
        value = f"{best.metric}={best.value:.5g}"
        return f"<{self.experiment.id}: best {value} with {best.params}>"

    def _repr_html_(self) -> str:
        """Return state, best trials and a link, for a notebook."""
        return self.experiment._repr_html_()
