"""Trials a second for trials that only report a synthetic curve: ASHA, eta 3, R 81.

Rung runs each trial in a process of its own, every report durable. The peers run on the same
cores in the same run: Ray Tune with `reuse_actors` (its best), Optuna on its journal file with two
worker processes, and Optuna in memory in one process, which is neither durable nor isolated and
stands for what no platform can reach.

    python benchmarks/trials.py [--trials 100,1000] [--peers ray,optuna-journal,optuna-memory]
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CODE = Path(__file__).parent / "submitted" / "synthetic"
RUNGS = (1, 3, 9, 27, 81)


def rung_trials(trials: int, slots: int = 4) -> float:
    """Return Rung's trials a second, from submission to the end of the search."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "RUNG_DATA": folder}

        def rung(*arguments: str) -> str:
            command = [sys.executable, "-m", "rung.cli", *arguments]
            output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
            return output.stdout.decode()

        def search(count: int) -> float:
            file = Path(folder) / f"{count}.yaml"
            file.write_text(experiment(count, slots))
            name = json.loads(rung("submit", str(file), str(CODE), "--json"))
            started = time.perf_counter()
            rung("wait", name["experiment_id"])
            return count / (time.perf_counter() - started)

        rung("up", "--detach", "--port", "0", "--slots", str(slots))
        try:
            search(slots)  # the warm parent is warm, as on a machine in use
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
    rates = {}
    for count in map(int, options.trials.split(",")):
        rates[count] = rung_trials(count)
        print(f"rung, {count} trials: {rates[count]:8.1f} trials/s", flush=True)
    ours = max(rates.values())
    for name in filter(None, options.peers.split(",")):
        measure, count = PEERS[name]
        rate = measure(count)
        print(
            f"{name}, {count} trials: {rate:8.1f} trials/s; rung is {ours / rate:.2f} times that"
        )


if __name__ == "__main__":
    main()
