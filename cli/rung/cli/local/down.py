"""`rung down`: the other end of `rung up`."""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

import click

from rung.cli.local.data_folder import check_owner, default_path, holder_of, is_running
from rung.cli.output import print_json_line
from rung.events import RungError

_STOP_S_MAX: Final = 60.0


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="Data folder [RUNG_DATA, ~/.rung].")
@click.option("--json", "as_json", is_flag=True, help="Print the data folder and its process.")
def down(data: Path | None, *, as_json: bool) -> None:
    """Stop the Rung of a data folder; what trains goes on from its checkpoints at the next up."""
    path = (data or default_path()).expanduser().absolute()
    check_owner(path)
    pid = holder_of(path)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself a moment ago
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)  # one that is stopped acts on no signal before
        deadline = time.monotonic() + _STOP_S_MAX
        while is_running(path):
            if time.monotonic() > deadline:
                raise RungError(
                    f"process {pid} does not stop; see {path}/log/rung.log, "
                    f"or end it with `kill -9 {pid}`: nothing is lost"
                )
            time.sleep(0.05)
    if as_json:
        print_json_line({"data": str(path), "pid": pid})
    else:
        click.echo(f"Rung no longer runs on {path}.")
