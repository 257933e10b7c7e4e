"""Trials a second for trials that only report a synthetic curve: ASHA, eta 3, R 81.

Rung runs each trial in a process of its own, every report durable. The peers run on the same
cores in the same run: Ray Tune with `reuse_actors` (its best), Optuna on its journal file with two
worker processes, and Optuna in memory in one process, which is neither durable nor isolated and
stands for what no platform can reach. Of Rung there is also the processor time of a trial, in all
processes of `rung up`: services, agent, fork servers and the trial's own.

    python -m benchmarks.search.trials [--trials 100,1000] [--peers ray,optuna-memory]
"""

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
from benchmarks.figures import figure

AIM_MS = 20
AIM_RATIO = 3
CODE = Path(__file__).parents[1] / "submitted" / "synthetic"
RUNGS = (1, 3, 9, 27, 81)
SETTLES_S = 60
AT_REST = 0.1
"""Of a processor."""


class Search(NamedTuple):
    """What was measured of one search."""

    rate: float
    """Trials a second, from submission to the end of the search."""
    cpu_ms: float
    """What a trial takes of a processor."""


def cpu_s(pid: int) -> float:
    """Return the processor time of a process, of those below it, and of their ended ones."""
    root = psutil.Process(pid)
    spent = 0.0
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            spent += sum(process.cpu_times()[:4])
    return spent


def settle(pid: int) -> None:
    """Wait until a process and those below it rest: fork servers import frameworks at first."""
    before = cpu_s(pid)
    for _ in range(SETTLES_S):
        time.sleep(1.0)
        now = cpu_s(pid)
        if now - before < AT_REST:
            return
        before = now


def rung_trials(trials: int, slots: int = 4) -> Search:
    """Run a search of so many trials by Rung."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "RUNG_DATA": folder}

        def rung(*arguments: str) -> str:
            command = [sys.executable, "-m", "rung.cli", *arguments]
            output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
            return output.stdout.decode()

        def search(count: int) -> Search:
            file = Path(folder) / f"{count}.yaml"
            file.write_text(experiment(count, slots))
            used = cpu_s(pid)
            name = json.loads(rung("submit", str(file), str(CODE), "--json"))
            started = time.perf_counter()
            rung("wait", name["experiment_id"])
            rate = count / (time.perf_counter() - started)
            return Search(rate, 1000 * (cpu_s(pid) - used) / count)

        up = rung("up", "--detach", "--port", "0", "--slots", str(slots), "--json")
        pid: int = json.loads(up)["pid"]
        try:
            search(slots)
            settle(pid)  # the fork servers are warm, as on a machine in use
            return search(trials)
        finally:
            rung("down")


def experiment(trials: int, slots: int) -> str:
    """Return the experiment file, in JSON, which is YAML too."""
    return json.dumps(
        {
            "name": f"synthetic-{trials}",
            "entrypoint": "python3 train.py",
            "hyperparameters": {"limit": {"type": "double", "minval": 0, "maxval": 1}},
            "searcher": {
                "name": "async_halving",
                "metric": "loss",
                "time_metric": "batches",
                "max_time": 81,
                "num_rungs": 5,
                "divisor": 3,
                "max_trials": trials,
                "max_concurrent_trials": slots,
            },
            "reproducibility": {"experiment_seed": 1},
        }
    )


def ray_trials(trials: int) -> float:
    """Return Ray Tune's trials a second with ASHA and reused actors."""
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    class Curve(tune.Trainable):  # type: ignore[misc]  # Ray may not be installed
        def setup(self, config: dict[str, float]) -> None:
            self.limit, self.at = config["limit"], 0

        def step(self) -> dict[str, float]:
            self.at += 1
            return {"loss": self.limit + 1 / RUNGS[self.at - 1], "time": RUNGS[self.at - 1]}

        def reset_config(self, new_config: dict[str, float]) -> bool:
            self.setup(new_config)
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> None: ...

        def load_checkpoint(self, checkpoint: str) -> None: ...

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    scheduler = ASHAScheduler(time_attr="time", max_t=81, grace_period=1, reduction_factor=3)
    tuner = tune.Tuner(
        Curve,
        param_space={"limit": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=trials, scheduler=scheduler, reuse_actors=True
        ),
        run_config=tune.RunConfig(verbose=0, stop={"time": 81}),
    )
    started = time.perf_counter()
    tuner.fit()
    rate = trials / (time.perf_counter() - started)
    ray.shutdown()
    return rate


def _optuna_worker(path: str | None, trials: int) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name="curve",
        storage=JournalStorage(JournalFileBackend(path)) if path else None,
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
    )

    def objective(trial: "optuna.Trial") -> float:
        limit: float = trial.suggest_float("limit", 0, 1)
        for step in RUNGS:
            trial.report(limit + 1 / step, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return limit + 1 / 81

    study.optimize(objective, n_trials=trials)


def optuna_journal_trials(trials: int) -> float:
    """Return Optuna's trials a second on its journal file, two workers."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/journal"
        workers = [
            multiprocessing.get_context("spawn").Process(
                target=_optuna_worker, args=(path, trials // 2)
            )
            for _ in range(2)
        ]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return trials / (time.perf_counter() - started)


def optuna_memory_trials(trials: int) -> float:
    """Return Optuna's trials a second in memory, in one process."""
    started = time.perf_counter()
    _optuna_worker(None, trials)
    return trials / (time.perf_counter() - started)


PEERS: dict[str, tuple[Callable[[int], float], int]] = {
    "ray": (ray_trials, 200),
    "optuna-journal": (optuna_journal_trials, 400),
    "optuna-memory": (optuna_memory_trials, 400),
}


def main() -> None:
    """Print the rates and their ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", default="100,1000")
    parser.add_argument("--peers", default=",".join(PEERS))
    options = parser.parse_args()
    rates = []
    for count in map(int, options.trials.split(",")):
        search = rung_trials(count)
        rates.append(search.rate)
        figure(
            f"a trial's whole life, a process each, {count:,} trials",
            search.cpu_ms,
            "ms of CPU",
            at_most=AIM_MS,
            beside=f"{search.rate:.1f} trials/s",
        )
    ours = max(rates)
    for name in filter(None, options.peers.split(",")):
        if importlib.util.find_spec(name.partition("-")[0]) is None:
            print(f"{name} is not installed")
            continue
        measure, count = PEERS[name]
        rate = measure(count)
        figure(
            f"trials a second, to those of {name}",
            ours / rate,
            "times",
            at_least=AIM_RATIO if name == "ray" else None,
            beside=f"{ours:.1f} to {rate:.1f} at {count} trials",
        )


if __name__ == "__main__":
    main()
