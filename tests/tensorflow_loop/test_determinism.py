"""What cannot be exact is named."""

from collections.abc import Callable
from typing import Any

import pytest

from support.framework_trials import needs

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e]


def test_random_operators_with_a_state_are_named(
    tf: Any, part: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the function that is traced; generators that can be kept are not among them."""
    generator = tf.random.Generator.from_seed(1)

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def step(value: Any, *, dropping: bool) -> Any:
        value += generator.normal(())
        if dropping:
            value = tf.nn.dropout(value, 0.5) + tf.random.normal(())
        part("determinism").tell()
        return value

    part("determinism").tell()
    step(tf.ones(2), dropping=False)
    assert not "".join(capsys.readouterr())
    step(tf.ones(2), dropping=True)
    said = "".join(capsys.readouterr())
    assert "RandomStandardNormal, RandomUniform" in said
