"""Exact resuming with TensorFlow: a tf.data pipeline goes on within an epoch, bit for bit.

Importing it checks the private interfaces that it needs, which are all in `seams`.
"""

from rung.tensorflow.exact.seams import ADD_ON

ADD_ON.check()

from rung.tensorflow.exact.coordination_timeouts import be_patient  # noqa: E402 - behind the check
from rung.tensorflow.exact.pipeline import Pipeline  # noqa: E402 - as above
from rung.tensorflow.exact.shared_seeds import shared_seeds  # noqa: E402 - as above

__all__ = ["ADD_ON", "Pipeline", "be_patient", "shared_seeds"]
