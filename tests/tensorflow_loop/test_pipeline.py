"""The position in a tf.data pipeline."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rung.events import RungError
from support.framework_trials import needs

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e]
Part = Callable[[str], Any]
BATCHES = 3


def _pipelines(tf: Any) -> dict[str, Callable[[], Any]]:
    def records() -> Any:
        return tf.data.Dataset.range(22)

    def noisy() -> Iterator[Any]:
        for number in range(22):
            yield number + random.random()  # noqa: S311 - what is to be set again

    return {
        "plain": lambda: records().batch(8),
        "shuffled": lambda: records().shuffle(22).batch(8),
        "little": lambda: records().shuffle(5).batch(8),
        "ahead": lambda: records().shuffle(22).batch(8).prefetch(2),
        "unknown": lambda: records().shuffle(22).filter(lambda _: True).batch(8),
        "twice": lambda: records().shuffle(9).map(lambda x: x + 1).shuffle(22).batch(8),
        "python": lambda: tf.data.Dataset.from_generator(
            noisy, output_signature=tf.TensorSpec((), tf.float32)
        ).batch(8),
    }


NAMES = ["plain", "shuffled", "little", "ahead", "unknown", "twice", "python"]


def _opened(tf: Any, part: Part, name: str) -> Any:
    tf.random.set_seed(3)
    random.seed(4)
    return part("exact").Pipeline(_pipelines(tf)[name](), None)


def _rest(source: Any) -> list[Any]:
    found = []
    while True:
        try:
            found.append(source.next().numpy().tolist())
        except StopIteration:
            return found


@pytest.mark.parametrize("name", NAMES)
def test_every_position_is_set_again(tf: Any, part: Part, tmp_path: Path, name: str) -> None:
    """Saved behind each batch of each epoch: the rest of it, and the next epochs, are the same."""
    unbroken = _opened(tf, part, name)
    epochs = []
    for epoch in range(4):
        unbroken.open(epoch, 0, BATCHES * epoch, None)
        epochs.append(_rest(unbroken))
    for epoch in range(3):
        for batch in range(1, BATCHES):
            folder = tmp_path / f"{epoch}-{batch}"
            folder.mkdir()
            first = _opened(tf, part, name)
            for earlier in range(epoch):
                first.open(earlier, 0, BATCHES * earlier, None)
                _rest(first)
            first.open(epoch, 0, BATCHES * epoch, None)
            for _ in range(batch):
                first.next()
            assert not first.over(look=batch == 2)
            first.save(folder, within=True)
            assert _rest(first) == epochs[epoch][batch:]
            second = _opened(tf, part, name)
            second.open(epoch, batch, BATCHES * epoch + batch, folder)
            assert _rest(second) == epochs[epoch][batch:], (epoch, batch)
            second.open(epoch + 1, 0, BATCHES * (epoch + 1), None)
            assert _rest(second) == epochs[epoch + 1], (epoch, batch)


def test_between_epochs_the_number_says_all(tf: Any, part: Part, tmp_path: Path) -> None:
    """At the end of an epoch nothing is written, and the next one begins from its number."""
    unbroken = _opened(tf, part, "shuffled")
    for epoch in range(3):
        unbroken.open(epoch, 0, BATCHES * epoch, None)
        expected = _rest(unbroken)
    unbroken.save(tmp_path, within=False)
    assert list(tmp_path.iterdir()) == []
    second = _opened(tf, part, "shuffled")
    second.open(2, 0, BATCHES * 2, tmp_path)
    assert _rest(second) == expected


def test_a_look_finds_the_end_where_no_number_tells(tf: Any, part: Part) -> None:
    """Of a filtered data set only a look ahead says whether there is more."""
    source = _opened(tf, part, "unknown")
    source.open(0, 0, 0, None)
    for _ in range(BATCHES):
        assert not source.over(look=True)
        source.next()
    assert not source.over(look=False)
    assert source.over(look=True)


def test_a_stream_without_end_goes_on(tf: Any, part: Part, tmp_path: Path) -> None:
    """Its epochs are as long as one says, and its iterator goes on over all of them."""

    def opened() -> Any:
        tf.random.set_seed(3)
        data = tf.data.Dataset.counter().shuffle(7).batch(4)
        return part("exact").Pipeline(data, 2)

    unbroken = opened()
    expected = []
    for epoch in range(4):
        unbroken.open(epoch, 0, 2 * epoch, None)
        expected += _rest(unbroken)
    assert len(expected) == 8
    first = opened()
    for epoch in range(2):
        first.open(epoch, 0, 2 * epoch, None)
        found = _rest(first)
    first.save(tmp_path, within=False)
    second = opened()
    second.open(2, 0, 4, tmp_path)
    found = _rest(second)
    second.open(3, 0, 6, None)
    assert found + _rest(second) == expected[4:]


def test_what_could_not_be_set_again_is_refused(tf: Any, part: Part) -> None:
    """A shuffle that is repeated, and pieces of a data set with an end."""
    pipeline = part("exact").Pipeline
    records = tf.data.Dataset.range(22)
    with pytest.raises(RungError, match=r"leave \.repeat\(\) out"):
        pipeline(records.shuffle(22).batch(8).repeat(), 3)
    with pytest.raises(RungError, match=r"leave \.repeat\(\) out"):
        pipeline(records.shuffle(22).repeat(2).batch(8), None)
    with pytest.raises(RungError, match="batches_per_epoch=2"):
        pipeline(records.batch(8), 2)
    pipeline(records.repeat(2).shuffle(22).batch(8), None)
