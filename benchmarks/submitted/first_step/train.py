"""One training step of a small network, then one report that carries the moment it was done."""

import time

import torch

from rung import core

with core.init() as context:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.Flatten(), torch.nn.LazyLinear(9)
    )
    loss = model(torch.zeros(8, 1, 8, 8)).square().mean()
    optimizer = torch.optim.Adam(model.parameters())
    loss.backward()
    optimizer.step()
    print("first step", time.time(), flush=True)
    context.train.report_validation_metrics(
        steps_completed=1, metrics={"loss": loss.item(), "moment": time.time()}
    )
