"""The logger of a run's processes."""

import subprocess
import sys

from structlog.testing import capture_logs

from rung.cache.log import log


def test_a_process_that_logs_nothing_does_not_import_structlog() -> None:
    """Neither a script with the Core API nor the process that forks the runs."""
    modules = "rung.core, rung.agent.forkserver.server"
    code = f"import sys, {modules}; sys.exit('structlog' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_logged_is_a_line_of_keys_and_values() -> None:
    """As everywhere."""
    with capture_logs() as lines:
        log().warning("checkpoint damaged", reason="cut off")
    assert lines == [{"event": "checkpoint damaged", "reason": "cut off", "log_level": "warning"}]
