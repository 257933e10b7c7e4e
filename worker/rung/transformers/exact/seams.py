"""The private interfaces of Transformers that exact resuming needs, as data."""

from typing import Final

from rung.training.introspection.seams import AddOn, Kind, Seam

_TRAINER: Final = "transformers.trainer:Trainer"
_LOSSES: Final = (
    "the losses since the trainer last logged are not in the checkpoint, so a run that resumes "
    "reports others"
)
_DRAWS: Final = (
    "a data set and a collator do not draw by the seeds of their samples, so a run that resumes "
    "trains on other data"
)
_SHARES: Final = "the curve on several slots is not that of one slot"
_POSITION: Final = "a run that resumes begins at another batch"


ADD_ON: Final = AddOn(
    framework="Transformers",
    module="transformers",
    package="transformers[torch]",
    lowest="5.3",
    newest="5.23",
    without=(
        "a run resumes as the trainer does by itself, on other draws, and several slots train as "
        "the trainer's own data parallelism does"
    ),
    seams=(
        Seam(
            f"{_TRAINER}._init_training_state",
            Kind.CALL,
            "the position in a stream cannot be set, so a run that resumes in one begins at "
            "another batch",
            (
                "max_steps",
                "num_update_steps_per_epoch",
                "num_train_epochs",
                "resume_from_checkpoint",
                "trial",
            ),
        ),
        Seam(
            f"{_TRAINER}._inner_training_loop",
            Kind.NAMES,
            _POSITION,
            ("_init_training_state", "get_train_dataloader", "_run_epoch"),
        ),
        Seam(
            f"{_TRAINER}._inner_training_loop",
            Kind.NAMES,
            "what callbacks do where training and epochs begin counts twice in a run that resumes",
            ("on_train_begin", "on_epoch_begin", "callback_handler"),
        ),
        Seam(f"{_TRAINER}._run_epoch", Kind.NAMES, _LOSSES, ("_tr_loss",)),
        Seam(
            f"{_TRAINER}._inner_training_loop",
            Kind.NAMES,
            _LOSSES,
            ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged"),
        ),
        Seam(
            f"{_TRAINER}._maybe_log_save_evaluate",
            Kind.NAMES,
            _LOSSES,
            ("_total_loss_scalar", "_globalstep_last_logged"),
        ),
        Seam(
            f"{_TRAINER}._finalize_training",
            Kind.NAMES,
            _LOSSES,
            ("_tr_loss", "_total_loss_scalar"),
        ),
        Seam(f"{_TRAINER}._run_epoch", Kind.NAMES, _POSITION, ("get_batch_samples",)),
        Seam(
            f"{_TRAINER}.get_batch_samples",
            Kind.CALL,
            _POSITION,
            ("epoch_iterator", "num_batches", "device"),
        ),
        Seam(f"{_TRAINER}._run_epoch", Kind.NAMES, _SHARES, ("training_step",)),
        Seam(
            f"{_TRAINER}.training_step",
            Kind.CALL,
            _SHARES,
            ("model", "inputs", "num_items_in_batch"),
        ),
        Seam(f"{_TRAINER}.training_step", Kind.NAMES, _SHARES, ("compute_loss",)),
        Seam(
            f"{_TRAINER}.compute_loss",
            Kind.CALL,
            _SHARES,
            ("model", "inputs", "return_outputs", "num_items_in_batch"),
        ),
        Seam(f"{_TRAINER}.evaluate", Kind.NAMES, _SHARES, ("get_eval_dataloader",)),
        Seam(f"{_TRAINER}.evaluation_loop", Kind.NAMES, _SHARES, ("gather_function",)),
        Seam("transformers.loss.loss_utils:LOSS_MAPPING", Kind.ATTRIBUTE, _SHARES),
        Seam("transformers.loss.loss_utils:ForCausalLMLoss", Kind.ATTRIBUTE, _SHARES),
        Seam(
            "accelerate.data_loader:prepare_data_loader",
            Kind.CALL,
            _SHARES,
            (
                "dataloader",
                "device",
                "num_processes",
                "process_index",
                "put_on_device",
                "use_seedable_sampler",
                "data_seed",
            ),
        ),
        Seam(
            "accelerate.data_loader:DataLoaderAdapter.__init__",
            Kind.NAMES,
            _DRAWS,
            ("base_dataloader",),
        ),
    ),
)
