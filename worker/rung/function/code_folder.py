"""The files of a function in an experiment's code folder.

rung_function/function.pkl     the function, by cloudpickle
rung_function/about.json       its name, signature, Python and modules
rung_function/modules.py       imports of these modules; the agent looks whether any needs a
framework
rung_function/source.txt       the file or notebook cell that defines it, for people
"""

from typing import Final

from msgspec import Struct

FOLDER: Final = "rung_function"
FUNCTION: Final = f"{FOLDER}/function.pkl"
ABOUT: Final = f"{FOLDER}/about.json"
MODULES: Final = f"{FOLDER}/modules.py"
SOURCE: Final = f"{FOLDER}/source.txt"
ENTRYPOINT: Final = "python3 -m rung.function"


class About(Struct, frozen=True, kw_only=True):
    """A function before it is loaded."""

    name: str
    takes_run: bool
    """Whether it has a second parameter."""
    python: str
    """The version of Python that it comes from, as `3.12`: bytecode differs between them."""
    modules: dict[str, str]
    """Module that it uses → version of its package; empty if it has none."""
    file: str
    """What tracebacks call its source."""
