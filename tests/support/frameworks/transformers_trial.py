"""A Transformers trial: a tiny BERT, dropout, noise in the data, masks drawn in the collator.

A plain one draws nothing: what it trains must not depend on the number of slots. Its 21 records
make uneven batches, the last of a single record. Its model is BERT, whose loss is a mean over
records; Llama (`counting`), whose loss is a sum over the words that count; or BERT that guesses
words (`masking`), whose loss is a mean over those that count, of which some records have none.
"""

import hashlib
import io
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from rung import transformers as rt
from support.fuse import Fuse, after, before, out
from support.trial_notes import Notes
from support.trials import runner


class Words(Dataset[dict[str, Any]]):
    """Sentences of five words; one word of each is replaced at random."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a sentence with fresh noise."""
        words = [(index + place) % 20 for place in range(5)]
        words[random.randrange(5)] = int(torch.randint(0, 20, ()))  # noqa: S311 - noise
        return {"input_ids": words, "labels": index % 2}

    @property
    def weights(self) -> list[float]:
        """How often each is to be drawn."""
        return [1.0 + index % 3 for index in range(len(self))]


class Stream(IterableDataset[dict[str, Any]]):
    """The same sentences, of which nobody can tell how many there are."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        words, worker = Words(), get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return (words[index] for index in range(first, len(words), step))


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Return a batch with a word masked in each sentence."""
    inputs = torch.tensor([sample["input_ids"] for sample in samples])
    inputs[torch.arange(len(samples)), torch.randint(0, 5, (len(samples),))] = 21
    return {"input_ids": inputs, "labels": torch.tensor([sample["labels"] for sample in samples])}


class PlainWords(Words):
    """Sentences as they are, of which some words do not count."""

    def __init__(self, *, counting: bool, masking: bool) -> None:
        self._counting = counting or masking
        self._silent = (3, 4, 5) if masking else ()

    def __len__(self) -> int:
        return 21

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a sentence."""
        words = [(index * (place + 1)) % 20 for place in range(5)]
        if not self._counting:
            return {"input_ids": words, "labels": index % 2}
        first = 5 if index in self._silent else index % 4 + 1
        labels = [word if place >= first else -100 for place, word in enumerate(words)]
        return {"input_ids": words, "labels": labels}


class InOrder(transformers.Trainer):  # type: ignore[misc]  # may not be installed
    """Takes the records one after another, so that some parts of batches have no label at all."""

    def _get_train_sampler(self, *_data: Any) -> Any:
        return SequentialSampler(self.train_dataset)


class Weighing(transformers.Trainer):  # type: ignore[misc]  # may not be installed
    """Makes a loader of its own, from what its data set has."""

    def get_train_dataloader(self) -> Any:
        """Return a loader that draws some sentences more often."""
        data = self.train_dataset
        sampler = WeightedRandomSampler(data.weights, len(data))
        loader: DataLoader[Any] = DataLoader(
            data, self._train_batch_size, sampler=sampler, collate_fn=self.data_collator
        )
        return self.accelerator.prepare(loader)


class Evaluating(transformers.Trainer):  # type: ignore[misc]  # may not be installed
    """Trains with its model in evaluation mode."""

    def compute_loss(self, model: Any, *given: Any, **named: Any) -> Any:
        """Compute as in an evaluation."""
        model.eval()
        return super().compute_loss(model, *given, **named)


class Loose(transformers.Trainer):  # type: ignore[misc]  # may not be installed
    """Makes a loader that is none of torch's."""

    def get_train_dataloader(self) -> Any:
        """Return batches."""
        return list(super().get_train_dataloader())


KINDS: dict[str | None, Any] = {
    None: transformers.Trainer,
    "in order": InOrder,
    "weighing": Weighing,
    "evaluating": Evaluating,
    "loose": Loose,
}
"""Trainers that an order may name."""


def measures(prediction: Any) -> dict[str, float]:
    """Return what depends on all predictions, and on their order."""
    found = np.asarray(prediction.predictions).reshape(len(prediction.label_ids), -1)[:, 0]
    return {"mean": float(found.mean()), "ordered": float((found * np.arange(len(found))).mean())}


class Burning(rt.Callback):
    """Asks the fuse before and after each step, and behind each checkpoint."""

    fuse = Fuse(None)

    def on_step_end(self, args: Any, state: Any, *others: Any, **more: Any) -> None:
        """One more step."""
        self.fuse.reach(before(state.global_step))
        super().on_step_end(args, state, *others, **more)

    def on_step_begin(self, _args: Any, state: Any, *_others: Any, **_more: Any) -> None:
        """The next step, after a checkpoint that may have been made."""
        self.fuse.reach(after(state.global_step))

    def on_train_end(self, args: Any, state: Any, *others: Any, **more: Any) -> None:
        """The end, with everything kept."""
        super().on_train_end(args, state, *others, **more)
        self.fuse.reach(out(round(state.epoch)))


class Beside(transformers.TrainerCallback):  # type: ignore[misc]  # may not be installed
    """Evaluates on its own account, as a script may."""

    trainer: Any = None

    def on_epoch_begin(self, *_others: Any, **_more: Any) -> None:
        """Evaluate under another name."""
        self.trainer.evaluate(self.trainer.train_dataset, metric_key_prefix="other")


def warm_up() -> None:
    """Pay once for what is imported at first use, such as every class of this library."""
    runner.warm_up()
    assert transformers.Trainer
    assert transformers.BertForSequenceClassification
    assert transformers.BertForMaskedLM
    assert transformers.LlamaForCausalLM


def network(*, plain: bool, counting: bool, masking: bool, width: int) -> Any:
    """Return a tiny model."""
    if counting:
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=22,
                hidden_size=8,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=8,
                max_position_embeddings=8,
            )
        )
    dropout = 0.0 if plain else 0.1
    kind = transformers.BertForSequenceClassification
    if masking:
        kind = transformers.BertForMaskedLM
    return kind(
        transformers.BertConfig(
            vocab_size=22,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=width,
            num_labels=2,
            max_position_embeddings=8,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def train(order: dict[str, Any]) -> dict[str, Any]:
    """Train as a run."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    with rt.init() as run:
        notes = Notes(run, order)
        plain, counting = order.get("plain", False), order.get("counting", False)
        masking = order.get("masking", False)
        width = order.get("width", 8)
        model = network(plain=plain, counting=counting, masking=masking, width=width)
        rung = Burning(run)
        rung.fuse = Fuse(order["moment"], run.checkpoint.wait)
        named: dict[str, Any] = {"eval_strategy": "epoch", "save_strategy": "no"}
        arguments = transformers.TrainingArguments(
            output_dir="output",
            num_train_epochs=2,
            per_device_train_batch_size=order.get("batch", 4) // run.distributed.size,
            gradient_accumulation_steps=order.get("accumulate", 1),
            dataloader_num_workers=order.get("workers", 0),
            learning_rate=0.01,
            logging_steps=order.get("logging", 1),
            report_to=[],
            disable_tqdm=True,
            **(named | order.get("arguments", {})),
        )
        names = order.get("names")
        words: Words = PlainWords(counting=counting, masking=masking) if plain else Words()
        early = transformers.EarlyStoppingCallback(order.get("patience", 100), 1e9)
        kind = "in order" if masking else order.get("trainer")
        trainer = KINDS[kind](
            model,
            arguments,
            data_collator=transformers.default_data_collator if plain else collate,
            train_dataset=Stream() if order.get("stream") else words,
            eval_dataset=dict.fromkeys(names, words) if names else words,
            compute_metrics=measures if plain else None,
            callbacks=[rung, *([early] if "patience" in order else [])],
        )
        if order.get("beside"):
            beside = Beside()
            beside.trainer = trainer
            trainer.add_callback(beside)
        for _ in range(order.get("fits", 1)):
            rung.train(trainer)
        return {
            "model": _digest(model.state_dict()),
            "optimizer": _digest(trainer.optimizer.state_dict()) if trainer.optimizer else None,
            "drawn": random.random(),  # noqa: S311 - the generator's state
        } | notes.told()


def _digest(state: Any) -> str:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return hashlib.sha256(buffer.getvalue()).hexdigest()
