"""What every front door shares that stands in somebody else's training loop.

Keras, Lightning, Transformers and TensorFlow keep their own loops. A `Course` beside such a loop
knows how far the trial is, what is due, and keeps both in checkpoints.
"""

from rung.loop.course import Course
from rung.loop.seeding import started

__all__ = ["Course", "started"]
