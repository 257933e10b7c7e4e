"""A trial that goes past its length, and times how long it takes until it is told to leave."""

import time

from rung import core

with core.init() as context:
    context.train.report_validation_metrics(steps_completed=1, metrics={"loss": 1.0})
    began = time.perf_counter()
    context.train.report_validation_metrics(steps_completed=2, metrics={"loss": 1.0})
    while not context.preempt.should_preempt() and time.perf_counter() - began < 30:
        time.sleep(0.0005)
    taken_ms = 1000 * (time.perf_counter() - began)
    context.train.report_training_metrics(steps_completed=2, metrics={"roundtrip_ms": taken_ms})
