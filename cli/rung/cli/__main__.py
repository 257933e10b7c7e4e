"""Entry point of the command `rung`: errors become one line and an exit code."""

import os
import sys
import traceback

import click

from rung.cli import exit_code
from rung.cli.group import rung
from rung.cli.terminal import escape, guarded
from rung.events import RungError


def main() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; whatever goes wrong is said in a line or two."""
    with guarded():
        try:
            return _run(arguments)
        except Exception:  # noqa: BLE001 - a fault of Rung; its traceback may quote anything
            traceback.print_exc()
            return exit_code.TROUBLE


def _run(arguments: list[str]) -> int:
    try:
        code = rung.main(arguments, prog_name="rung", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return exit_code.USAGE if isinstance(error, click.UsageError) else exit_code.TROUBLE
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return exit_code.INTERRUPTED
    except RungError as error:
        say(error)
        return exit_code.of_error(error)
    except BrokenPipeError:
        code = _unread()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"Error: {where}{error.strerror or error}", err=True)
        return exit_code.TROUBLE
    except SystemExit as left:
        # So click answers a broken pipe, with exit code 1.
        if not isinstance(left.__context__, BrokenPipeError):
            raise
        code = _unread()
    return code if isinstance(code, int) else exit_code.OK


def _unread() -> int:
    """Go on in silence: whoever read our output has gone, as in `rung list | head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_code.OK


def say(error: RungError) -> None:
    """Print an error for a person: what is wrong, and what to do."""
    items = getattr(error, "errors", None) or getattr(error, "details", None) or []
    if not items:
        click.echo(f"Error: {escape(str(error))}", err=True)
        return
    count = "one problem" if len(items) == 1 else f"{len(items)} problems"
    click.echo(f"Error: refused, with {count}:", err=True)
    for item in items:
        line = f" (line {item.line})" if getattr(item, "line", None) else ""
        click.echo("  " + escape(f"{item.path or 'file'}{line}: {item.message}"), err=True)


if __name__ == "__main__":
    main()
