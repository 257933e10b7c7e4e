"""A search over a Python function: `rung.tune`, and the parameters of its space.

result = rung.tune(train, space={"lr": rung.loguniform(1e-4, 1e-1)}, metric="loss", trials=50)
print(result.best.params)
"""

from rung.tuning.result import TuneResult
from rung.tuning.search import tune
from rung.tuning.space import choice, loguniform, randint, uniform

__all__ = ["TuneResult", "choice", "loguniform", "randint", "tune", "uniform"]
