"""Files of a checkpoint: writes and reads a trial's state.

    model.pt         the model's state_dict; load it with torch.load(…, weights_only=True)
    model.frozen.pt  its parameters that are not trained, if they are large; stored once
    model-1.pt …     the same for further models
    sharded/         instead of these, if tensors are sharded: each rank's parts of them, and of
                     other sharded tensors (`rung.torch.checkpoint.sharded_files`)
    training.pt      optimizers, schedulers, scaler, gradients, torch's generators, position in
                     the data, averages, objects passed to `keep` (an EMA copy, for example), the
                     trial's and the callbacks' own state
    untracked.pt     what has changed beside these states, if anything has
                     (`rung.torch.checkpoint.untracked_state`)
    trainer.json     counters, Python's and NumPy's generators, properties of the machine

The chief writes everything but the other ranks' parts. `divided` assigns sharded tensors to ranks
and `copied` copies the state, both between two steps; `files_of` returns how to write it.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from rung import core
from rung.storage.checkpoint.writer import Sink
from rung.torch.checkpoint import changes, tensor_file
from rung.torch.checkpoint.snapshot import Snapshot
from rung.torch.checkpoint.state import Captured

FORMAT_SHARDED: Final = 2
"""The format of checkpoints with sharded tensors."""
_SHARDED: Final = ("optimizers", "gradients", "kept")
"""Entries of `training` that may have sharded tensors, besides the models."""


class File(NamedTuple):
    """How to write a file of a checkpoint."""

    save: Callable[[Sink], object]
    may_be_unchanged: bool = False


def divided(captured: Captured, ranks: core.DistributedContext) -> Captured:
    """Return a sharded state with this rank's share of its tensors; all ranks must call this.

    Everything else is written by the chief; models are part of its `training`, too.
    """
    from rung.torch.checkpoint.sharded_files import Found, Share  # noqa: PLC0415 - one slot needs none of it

    found = Found(chief=ranks.is_chief)
    training = captured.training | {
        name: found.without(captured.training[name], (name,)) for name in _SHARDED
    }
    training["models"] = [
        found.without(model, (_model_name(index),), wholes=True)
        for index, model in enumerate(captured.models)
    ]
    frozen = frozenset(
        f"{_model_name(index)}.{name}"
        for index, names in enumerate(captured.frozen)
        for name in names
    )
    return Captured(
        models=[],
        training=training if ranks.is_chief else {},
        trainer=captured.trainer | {"format": FORMAT_SHARDED},
        untracked=captured.untracked,
        share=Share(found, frozen, ranks),
    )


def copied(captured: Captured, snapshot: Snapshot) -> Captured:
    """Return a captured state that does not change when training goes on."""
    models = snapshot.take(captured.models)
    training = snapshot.take(captured.training)
    untracked = snapshot.take(captured.untracked)
    if captured.share is not None:
        captured.share.copy(snapshot)
    snapshot.settle()
    return msgspec.structs.replace(captured, models=models, training=training, untracked=untracked)


def files_of(captured: Captured) -> dict[str, File]:
    """Return how this rank writes a captured state, by name of the file."""
    files = {}
    if captured.share is not None:
        for name, may_be_unchanged in captured.share.files:
            files[name] = File(partial(captured.share.save, name), may_be_unchanged)
        if not captured.training:  # the chief's
            return files
    for index, model in enumerate(captured.models):
        frozen = captured.frozen[index] if captured.frozen else frozenset[str]()
        trained = OrderedDict((name, it) for name, it in model.items() if name not in frozen)
        vars(trained).update(getattr(model, "__dict__", {}))  # the versions of its modules
        files[_model_file(index)] = File(partial(tensor_file.save, trained))
        if frozen:
            rest = {name: it for name, it in model.items() if name in frozen}
            files[_model_file(index, ".frozen")] = File(partial(tensor_file.save, rest), True)  # noqa: FBT003 - a record
    files["training.pt"] = File(partial(tensor_file.save, captured.training))
    if captured.untracked is not None:
        files[changes.FILE] = File(partial(tensor_file.save, captured.untracked))
    text = json.dumps(captured.trainer)  # knows NaN, which a metric's best value may be
    files["trainer.json"] = File(lambda sink: sink.write(text.encode()))
    return files


def closing_files(captured: Captured, written: list[Any]) -> dict[str, File]:
    """Return the files that the chief writes last, by name.

    Args:
        captured: the state.
        written: each rank's `Share.written`.
    """
    if captured.share is None:
        return {}
    from rung.torch.checkpoint.sharded_files import METADATA  # noqa: PLC0415 - as above

    return {METADATA: File(partial(captured.share.save_metadata, written))}


def write(folder: Path, files: Mapping[str, File]) -> None:
    """Write files into a folder."""
    for name, file in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as opened:
            file.save(opened)


def read(files: Mapping[str, Path], models: int) -> Captured:
    """Read a state; only tensors and plain values are ever unpickled.

    Models and optimizers are memory-mapped: their tensors can be copied from as long as the files
    exist.
    """
    training = tensor_file.load(files["training.pt"])
    rest = {
        name: value for name, value in training.items() if name not in {"optimizers", "models"}
    }
    training |= tensor_file.owned(rest)
    trainer = json.loads(files["trainer.json"].read_text(encoding="utf-8"))
    untracked = None
    if changes.FILE in files:
        untracked = tensor_file.owned(tensor_file.load(files[changes.FILE]))
    captured = Captured(models=[], training=training, trainer=trainer, untracked=untracked)
    found = training.pop("models", None)
    if found is not None:
        captured.models = found[:models]
        return _in_pieces(captured, files)
    for index in range(models):
        state = tensor_file.load(files[_model_file(index)])
        frozen = files.get(_model_file(index, ".frozen"))
        if frozen is not None:
            state.update(tensor_file.load(frozen))
        captured.models.append(state)
    return captured


def _in_pieces(captured: Captured, files: Mapping[str, Path]) -> Captured:
    """Return a state with `Piece`s for sharded tensors, read once their target is known."""
    from rung.torch.checkpoint.sharded_files import Stored  # noqa: PLC0415 - as above

    stored, training = Stored(files), captured.training
    models = [
        stored.pieces(model, (_model_name(index),)) for index, model in enumerate(captured.models)
    ]
    pieces = {name: stored.pieces(training[name], (name,)) for name in _SHARDED}
    return msgspec.structs.replace(captured, models=models, training=training | pieces)


def _model_file(index: int, kind: str = "") -> str:
    return f"{_model_name(index)}{kind}.pt"


def _model_name(index: int) -> str:
    return f"model-{index}" if index else "model"
