"""What `rung.tensorflow` refuses."""

from rung.events import RungError


class CannotFollow(RungError):
    """TensorFlow is used in a way that could not be resumed; the message says what would do."""
