"""Entry point of the command `rung`; prints an error in a line and returns its exit code."""

import os
import sys
import traceback

import click

from rung.cli import exit_code
from rung.cli.group import rung
from rung.cli.output import counted
from rung.cli.terminal import escape, escaped_output
from rung.events import RungError


def main() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; an error is printed in a line or two."""
    with escaped_output():
        try:
            return _run(arguments)
        except Exception:  # noqa: BLE001 - a bug of Rung; its traceback may quote anything
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
        _print_error(error)
        return exit_code.of_error(error)
    except BrokenPipeError:
        code = _discard_output()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"Error: {where}{error.strerror or error}", err=True)
        return exit_code.TROUBLE
    except SystemExit as left:
        # So click answers a broken pipe, with exit code 1.
        if not isinstance(left.__context__, BrokenPipeError):
            raise
        code = _discard_output()
    return code if isinstance(code, int) else exit_code.OK


def _discard_output() -> int:
    """Discard further output: its reader has ended, as in `rung list | head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_code.OK


def _print_error(error: RungError) -> None:
    items = getattr(error, "errors", None) or getattr(error, "details", None) or []
    if not items:
        click.echo(f"Error: {escape(str(error))}", err=True)
        return
    click.echo(f"Error: refused, with {counted(len(items), 'problem')}:", err=True)
    for item in items:
        line = f" (line {item.line})" if getattr(item, "line", None) else ""
        click.echo("  " + escape(f"{item.path or 'file'}{line}: {item.message}"), err=True)


if __name__ == "__main__":
    main()
