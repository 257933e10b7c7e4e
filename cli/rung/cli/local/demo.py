"""`make demo`: a real search on this machine, followed live and audited at the end.

Starts `rung up` on a free port in a temporary folder, submits `examples/digits`, follows it, and
prints a summary. It runs the commands that a user would type.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Never

from rich.console import Console
from rich.table import Table

_EXAMPLE: Final = Path(__file__).parents[4] / "examples" / "digits"

_console = Console()


def main() -> None:
    """Run the demo; exits with the code of the search or of its audit.

    SIGTERM and Ctrl-C end it together with the server that it started.
    """
    signal.signal(signal.SIGTERM, _leave)
    folder = Path(tempfile.mkdtemp(prefix="rung-demo-"))
    os.environ["RUNG_DATA"] = str(folder)
    for name in ("RUNG_URL", "RUNG_TOKEN"):
        os.environ.pop(name, None)
    try:
        _rung("up", "--detach", "--port", "0")
        code = search()
    except subprocess.CalledProcessError as error:  # the command has printed the reason
        command = " ".join(error.cmd[3:])
        _console.print(f"The demo cannot go on: `rung {command}` failed.")
        code = error.returncode
    finally:
        _rung("down", check=False)
    _console.print(
        f"\nThe data folder is {folder}: `rung up --data {folder}` shows it in the page;"
        f" `rm -r {folder}` removes it."
    )
    sys.exit(code)


def search() -> int:
    """Run the example's search on the server of the environment, and print a summary.

    Returns:
        The exit code of the search, or else that of its audit.
    """
    started = time.monotonic()
    code = _rung("submit", str(_EXAMPLE / "digits.yaml"), str(_EXAMPLE), "-f", check=False)
    submitted = _json("list")["items"]
    if not submitted:
        return code
    experiment = submitted[0]["id"]
    while not _json("show", experiment)["ended_at"]:  # the command that followed it was killed
        code = _rung("wait", experiment, check=False)
    _report(experiment, time.monotonic() - started)
    _console.rule("audit: every decision decided again")
    return code or _rung("audit", experiment, check=False)


def _leave(number: int, _: object) -> Never:
    sys.exit(128 + number)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rung.cli", *arguments]


def _rung(*arguments: str, check: bool = True) -> int:
    _console.print(f"[bold]$ rung {' '.join(arguments)}[/bold]")
    return subprocess.run(_command(*arguments), check=check).returncode  # noqa: S603 - ours


def _json(*arguments: str) -> Any:
    output = subprocess.run(  # noqa: S603 - our own command
        _command(*arguments, "--json"), check=True, stdout=subprocess.PIPE
    )
    return json.loads(output.stdout)


def _report(experiment: str, seconds: float) -> None:
    shown, best = _json("show", experiment), _json("best", experiment)
    table = Table(title=f"best of {len(shown['trials'])} trials", show_header=False)
    table.add_row(best["metric"], f"{best['value']:.4f}")
    for name, value in _flat(best["hparams"]):
        table.add_row(name, f"{value:.6g}" if isinstance(value, float) else str(value))
    _console.print(table)
    trained, full = shown["units_trained"], shown["units_full"]
    _console.print(
        f"Trained {trained:,.10g} {shown['plan']['time_metric']} in {seconds:.0f} s; every trial "
        f"in full would have been {full:,.10g}: the search did {trained / full:.0%} of that."
    )
    if best["checkpoint"]:
        name = best["checkpoint"]["id"]
        _console.print(
            f"Its checkpoint is {name}; `rung download {name} --output best` fetches it, and\n"
            '`torch.load("best/model.pt", weights_only=True)` loads the weights.'
        )


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", value))
    return rows


if __name__ == "__main__":
    if shutil.which("git") and not _EXAMPLE.exists():
        sys.exit(f"{_EXAMPLE} is missing: the demo runs from a clone of the repository")
    main()
