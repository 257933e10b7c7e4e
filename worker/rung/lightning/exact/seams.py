"""The private interfaces of Lightning that exact resuming needs, as data."""

from typing import Final

from rung.training.introspection.seams import AddOn, Kind, Seam

_FIT: Final = "lightning.pytorch.loops.fit_loop:_FitLoop"
_EPOCH: Final = "lightning.pytorch.loops.training_epoch_loop:_TrainingEpochLoop"
_EVALUATION: Final = "lightning.pytorch.loops.evaluation_loop:_EvaluationLoop"
_LOOP: Final = "lightning.pytorch.loops.loop:_Loop"
_RESULT: Final = "lightning.pytorch.trainer.connectors.logger_connector.result"
_METRIC: Final = "torchmetrics.metric:Metric"

_HOOKS: Final = (
    "a checkpoint lacks what other callbacks and the module do behind a batch, so a run that "
    "resumes trains on from another state"
)
_RESTART: Final = "a run that resumes repeats or leaves out a validation"
_VALIDATION: Final = "a validation that is due within an epoch is left out"
_GRADIENTS: Final = "gradients that wait for their step are lost in a run that resumes"
_SUMS: Final = "what is logged for an epoch lacks the batches from before a run resumed"
_SHARED: Final = "what is logged for an epoch on several slots is not that of all slots"


ADD_ON: Final = AddOn(
    framework="Lightning",
    module="lightning",
    package="lightning",
    lowest="2.6",
    newest="2.6",
    without=(
        "a run resumes from its checkpoint's data, weights and generators, but not from what "
        "Lightning and other callbacks have summed up of the epoch"
    ),
    seams=(
        Seam(
            "lightning.pytorch.trainer.trainer:Trainer._run_stage",
            Kind.NAMES,
            _HOOKS,
            ("fit_loop", "run"),
        ),
        Seam(f"{_FIT}.run", Kind.NAMES, _HOOKS, ("on_run_start", "advance", "on_advance_end")),
        Seam(f"{_FIT}.on_run_start", Kind.ATTRIBUTE, _HOOKS),
        Seam(f"{_FIT}.advance", Kind.NAMES, _HOOKS, ("epoch_loop", "run")),
        Seam(f"{_FIT}.on_advance_end", Kind.ATTRIBUTE, _HOOKS),
        Seam(f"{_EPOCH}.run", Kind.NAMES, _HOOKS, ("advance", "on_advance_end")),
        Seam(f"{_EPOCH}.advance", Kind.CALL, _HOOKS, ("data_fetcher",)),
        Seam(f"{_EPOCH}.advance", Kind.NAMES, _HOOKS, ("batch_progress", "is_last_batch")),
        Seam(f"{_EPOCH}.on_advance_end", Kind.CALL, _HOOKS, ("data_fetcher",)),
        Seam(f"{_EPOCH}.on_advance_end", Kind.NAMES, _VALIDATION, ("_should_check_val_fx",)),
        Seam(f"{_EPOCH}._should_check_val_fx", Kind.CALL, _VALIDATION, ("data_fetcher",)),
        Seam(f"{_EPOCH}._should_accumulate", Kind.ATTRIBUTE, _GRADIENTS),
        Seam(f"{_LOOP}.restarting", Kind.NAMES, _RESTART, ("_restarting",)),
        Seam(f"{_EPOCH}.__init__", Kind.NAMES, _SHARED, ("_results", "val_loop")),
        Seam(f"{_EVALUATION}.__init__", Kind.NAMES, _SHARED, ("_results",)),
        Seam(f"{_FIT}._results", Kind.NAMES, _SHARED, ("_results", "epoch_loop", "val_loop")),
        Seam(
            "lightning.pytorch.trainer.trainer:Trainer.__init__",
            Kind.NAMES,
            _SUMS,
            ("_logger_connector",),
        ),
        Seam(
            "lightning.pytorch.trainer.connectors.logger_connector.logger_connector:"
            "_LoggerConnector.metrics",
            Kind.NAMES,
            _SUMS,
            ("_results", "metrics"),
        ),
        Seam(f"{_RESULT}:_ResultCollection.__init__", Kind.CALL, _SHARED, ("training",)),
        Seam(f"{_RESULT}:_ResultCollection.metrics", Kind.CALL, _SHARED, ("on_step",)),
        Seam(f"{_RESULT}:_ResultCollection.metrics", Kind.NAMES, _SHARED, ("_get_cache",)),
        Seam(f"{_RESULT}:_ResultCollection._get_cache", Kind.NAMES, _SHARED, ("_computed",)),
        Seam(f"{_RESULT}:_ResultCollection.valid_items", Kind.ATTRIBUTE, _SHARED),
        Seam(
            f"{_RESULT}:_ResultMetric.__init__",
            Kind.NAMES,
            _SUMS,
            ("is_tensor", "meta", "has_reset", "add_state"),
        ),
        Seam(
            f"{_RESULT}:_ResultMetric.update",
            Kind.NAMES,
            _SUMS,
            ("value", "cumulated_batch_size"),
        ),
        Seam(f"{_RESULT}:_ResultMetric.reset", Kind.NAMES, _SUMS, ("has_reset",)),
        Seam(
            f"{_RESULT}:_Metadata.__init__",
            Kind.CALL,
            _SHARED,
            ("fx", "name", "on_epoch", "dataloader_idx"),
        ),
        Seam(f"{_RESULT}:_Metadata.is_mean_reduction", Kind.ATTRIBUTE, _SUMS),
        Seam(f"{_RESULT}:_Metadata.is_sum_reduction", Kind.ATTRIBUTE, _SHARED),
        Seam(f"{_RESULT}:_Metadata.is_max_reduction", Kind.ATTRIBUTE, _SUMS),
        Seam(f"{_RESULT}:_Metadata.is_min_reduction", Kind.ATTRIBUTE, _SUMS),
        Seam(f"{_RESULT}:_Metadata.sync", Kind.ATTRIBUTE, _SHARED),
        Seam(f"{_RESULT}:_Sync.should", Kind.ATTRIBUTE, _SHARED),
        Seam(f"{_RESULT}:_Sync.__init__", Kind.CALL, _SHARED, ("rank_zero_only",)),
        Seam(f"{_METRIC}.__init__", Kind.NAMES, _SUMS, ("_update_count", "_computed")),
        Seam(f"{_METRIC}.metric_state", Kind.ATTRIBUTE, _SUMS),
        Seam(f"{_METRIC}._reduce_states", Kind.CALL, _SUMS, ("incoming_state",)),
        Seam(f"{_METRIC}._reduce_states", Kind.NAMES, _SUMS, ("_update_count",)),
        Seam(f"{_METRIC}._wrap_compute", Kind.NAMES, _SUMS, ("_computed",)),
    ),
)
