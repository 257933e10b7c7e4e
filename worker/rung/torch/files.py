"""A trial's state as files of a checkpoint, and back.

    model.pt         the model's state_dict; load it with torch.load(…, weights_only=True)
    model.frozen.pt  of it the parameters that are not trained, if they are large; stored once
    model-1.pt …     of further models
    sharded/         in their place, where tensors are sharded: what each rank has of them, and of
                     all else that is sharded (`rung.torch.sharded`)
    training.pt      optimizers, schedulers, scaler, gradients, torch's generators, position in
                     the data, averages, what the context keeps (an EMA copy, for example), the
                     trial's and the callbacks' own state
    trainer.json     counters, Python's and NumPy's generators, what the moment ran on

The chief writes all but its fellows' parts. `divided` says who writes what of sharded tensors,
`copied` copies it, `files_of` says how to write it; the first two between two steps.
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
from rung.torch import tensor_file
from rung.torch.snapshot import Snapshot
from rung.torch.state import Captured

FORMAT_SHARDED: Final = 2
"""Of what several ranks wrote."""
_SHARDED: Final = ("optimizers", "gradients", "kept")
"""What of `training` may have sharded tensors, beside the models."""


class File(NamedTuple):
    """How to write a file of a checkpoint."""

    save: Callable[[Sink], object]
    may_be_unchanged: bool = False


def divided(captured: Captured, ranks: core.DistributedContext) -> Captured:
    """Return a sharded state with what this rank writes of its tensors; all ranks must call this.

    What is no tensor stays where it was, for the chief to write; models lie in `training`, too.
    """
    from rung.torch.sharded import Found, Share  # noqa: PLC0415 - one slot needs none of it

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
        share=Share(found, frozen, ranks),
    )


def copied(captured: Captured, snapshot: Snapshot) -> Captured:
    """Return a captured state that does not change when training goes on."""
    models = snapshot.take(captured.models)
    training = snapshot.take(captured.training)
    if captured.share is not None:
        captured.share.copy(snapshot)
    snapshot.settle()
    return msgspec.structs.replace(captured, models=models, training=training)


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
    text = json.dumps(captured.trainer)  # knows NaN, which a metric's best value may be
    files["trainer.json"] = File(lambda sink: sink.write(text.encode()))
    return files


def closing_files(captured: Captured, written: list[Any]) -> dict[str, File]:
    """Return what the chief writes at last, by name of the file.

    Args:
        captured: the state.
        written: what each rank has to say of the files that it wrote.
    """
    if captured.share is None:
        return {}
    from rung.torch.sharded import METADATA  # noqa: PLC0415 - as above

    return {METADATA: File(partial(captured.share.save_metadata, written))}


def write(folder: Path, files: Mapping[str, File]) -> None:
    """Write files into a folder."""
    for name, file in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as opened:
            file.save(opened)


def read(files: Mapping[str, Path], models: int) -> Captured:
    """Read what was written; nothing but tensors and plain values is ever made of it.

    Models and optimizers are mapped, not read: their tensors are good for being copied from, as
    long as the files are there.
    """
    training = tensor_file.load(files["training.pt"])
    rest = {
        name: value for name, value in training.items() if name not in {"optimizers", "models"}
    }
    training |= tensor_file.owned(rest)
    trainer = json.loads(files["trainer.json"].read_text(encoding="utf-8"))
    found = training.pop("models", None)
    if found is not None:
        return _in_pieces(
            Captured(models=found[:models], training=training, trainer=trainer), files
        )
    found = []
    for index in range(models):
        state = tensor_file.load(files[_model_file(index)])
        frozen = files.get(_model_file(index, ".frozen"))
        if frozen is not None:
            state.update(tensor_file.load(frozen))
        found.append(state)
    return Captured(models=found, training=training, trainer=trainer)


def _in_pieces(captured: Captured, files: Mapping[str, Path]) -> Captured:
    """Return a state whose sharded tensors are read when it is known who holds what of them."""
    from rung.torch.sharded import Stored  # noqa: PLC0415 - as above

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
