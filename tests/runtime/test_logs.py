"""What a process logs."""

import contextlib
import io
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from rung.runtime import logs
from rung.runtime.logs import LevelUnknown, bind, log_plainly, log_to


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Leave logging as other tests expect it."""
    configuration = structlog.get_config()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    logs._everywhere.clear()
    structlog.configure(**configuration)
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)  # noqa: FBT003 - how the standard library takes it


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_says_what_when_and_where() -> None:
    """JSON, a line each, with what was bound."""
    stream = io.StringIO()
    log_to(stream, service="searcher")
    bind(ledger="1f")
    structlog.get_logger().warning("something", position=7)

    [line] = _lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "something",
        "level": "warning",
        "ledger": "1f",
        "position": 7,
        "service": "searcher",
    }


def test_libraries_come_out_in_the_same_form() -> None:
    """What Faust warns of is a line like any other."""
    stream = io.StringIO()
    log_to(stream, service="searcher")
    logging.getLogger("faust.transport").warning("lost %s", "broker 1")
    logging.getLogger("faust.transport").info("chatter")

    [line] = _lines(stream)
    assert line["event"] == "lost broker 1"
    assert (line["library"], line["service"]) == ("faust.transport", "searcher")


def test_threads_of_libraries_say_whose_they_are() -> None:
    """They know nothing of what is bound where the process begins."""
    stream = io.StringIO()
    log_to(stream, service="searcher")
    thread = threading.Thread(target=logging.getLogger("faust").warning, args=["something"])
    thread.start()
    thread.join()

    assert [line["service"] for line in _lines(stream)] == ["searcher"]


def test_a_command_warns_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """What it prints on stdout is its answer, perhaps in JSON."""
    log_plainly()
    structlog.get_logger().info("not said")
    structlog.get_logger().warning("said", reason="why")

    out, err = capsys.readouterr()
    assert out == ""
    assert "said" in err
    assert "not said" not in err


def test_a_traceback_is_part_of_its_line() -> None:
    """One event is one line, whatever is in it."""
    stream = io.StringIO()
    log_to(stream)
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        structlog.get_logger().exception("failed", thing=object)
        logging.getLogger("faust").exception("failed")

    ours, theirs = _lines(stream)
    assert "ZeroDivisionError" in ours["exception"]
    assert "ZeroDivisionError" in theirs["exception"]


def test_setting_it_up_again_sends_lines_once() -> None:
    """A second call takes the first one's place."""
    first, second = io.StringIO(), io.StringIO()
    log_to(first)
    log_to(second)
    logging.getLogger("faust").warning("once")

    assert (len(_lines(first)), len(_lines(second))) == (0, 1)


def test_a_full_disk_stops_nobody() -> None:
    """What cannot be written is lost; the process that wanted to say it goes on."""
    with Path("/dev/full").open("w", buffering=1) as full:
        log_to(full)
        structlog.get_logger().error("not written")
        logging.getLogger("faust").error("not written")
        with contextlib.suppress(OSError):
            full.close()


def test_the_level_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """RUNG_LOG_LEVEL says how much."""
    monkeypatch.setenv("RUNG_LOG_LEVEL", "ERROR")
    stream = io.StringIO()
    log_to(stream)
    structlog.get_logger().warning("not said")
    structlog.get_logger().error("said")

    assert [line["event"] for line in _lines(stream)] == ["said"]


def test_a_level_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the name of the setting and what would be right."""
    monkeypatch.setenv("RUNG_LOG_LEVEL", "loud")
    with pytest.raises(LevelUnknown, match=r"RUNG_LOG_LEVEL is 'loud'.*debug, info"):
        log_to(io.StringIO())
