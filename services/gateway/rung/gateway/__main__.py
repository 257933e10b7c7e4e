"""Runs the gateway as a process of its own: `python -m rung.gateway --ledger FOLDER|kafka://… …`.

Curves, lines and audits are other services' business: `rung service gateway` adds them.
"""

import contextlib

import click

from rung.gateway.command import CONTEXT, Parts, options, run
from rung.host.launch import Place


@click.command(context_settings=CONTEXT)
@options
def main(place: Place, token: str, bind: str, host_name: tuple[str, ...]) -> None:
    """Serve the API and the page of a ledger until SIGTERM, without curves and audits."""
    run(place, token, bind, host_name, lambda _: contextlib.nullcontext(Parts()))


if __name__ == "__main__":
    main()
