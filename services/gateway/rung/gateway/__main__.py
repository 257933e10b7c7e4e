"""Runs the gateway as a process of its own: `python -m rung.gateway --ledger FOLDER|kafka://… …`.

Curves, lines, audits, policies and requests about dead letters are other services' business:
`rung service gateway` adds them.
"""

import contextlib
from typing import Any

import click

from rung.gateway.command import CONTEXT, options, run
from rung.gateway.context import Parts


@click.command(context_settings=CONTEXT)
@options
def main(host_name: tuple[str, ...], **options: Any) -> None:
    """Serve the API and the page of a ledger until SIGTERM, without curves and audits."""
    run(names=host_name, compose=lambda _: contextlib.nullcontext(Parts()), **options)


if __name__ == "__main__":
    main()
