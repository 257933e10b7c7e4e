"""Prints the documents that are made from the records: `python -m rung.events asyncapi|page`."""

import sys

import msgspec

from rung.events.docs.asyncapi import asyncapi, events_page


def main() -> None:
    """Write the document named on the command line to standard output."""
    match sys.argv[1:]:
        case ["asyncapi"]:
            text = msgspec.json.format(msgspec.json.encode(asyncapi()), indent=1).decode() + "\n"
        case ["page"]:
            text = events_page()
        case _:
            sys.exit("usage: python -m rung.events asyncapi|page")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
