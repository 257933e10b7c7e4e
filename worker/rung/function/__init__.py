"""A Python function as a trial: `rung.tune` submits it, `python -m rung.function` calls it.

def train(params):                      # returns the metric
return fit(params["lr"])

def train(params, run):                 # reports it as it trains; may be stopped early
model = Net(params["width"])
if run.resumed:
model.load_state_dict(torch.load(run.resumed / "model.pt"))
for epoch in run:
loss = fit_an_epoch(model)
run.report(loss=loss)
with run.checkpoint() as folder:
torch.save(model.state_dict(), folder / "model.pt")
"""

from rung.function.run import Run

__all__ = ["Run"]
