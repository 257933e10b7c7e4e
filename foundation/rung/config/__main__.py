"""Prints the reference of the experiment file: `python -m rung.config`."""

import sys

from rung.config.docs.reference import reference


def main() -> None:
    """Write the page to standard output."""
    sys.stdout.write(reference())


if __name__ == "__main__":
    main()
