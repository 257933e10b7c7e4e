"""The `secrets` section: secrets of the workspace for trials, and variables that are secrets."""

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from rung.config.sections.section import Section

NAMED_MAX: Final = 64
"""Secrets of a workspace that an experiment uses."""
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
"""The name of a workspace's secret, and of a file."""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED: Final = ("RUNG_", "LD_", "PYTHON")
_OWN: Final = frozenset({"PATH", "HOME", "USER", "LOGNAME", "CUDA_VISIBLE_DEVICES"})


def _refused(message: str) -> PydanticCustomError:
    return PydanticCustomError("secrets", "{message}", {"message": message})


def _variables(value: Any) -> Any:
    for name in value if isinstance(value, dict | list) else []:
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise _refused(
                f"{str(name)[:40]!r} cannot name a variable: give letters, digits and `_`, such as"
                " HF_TOKEN"
            )
        if name.startswith(_RESERVED) or name in _OWN:
            raise _refused(f"{name} belongs to the platform or the loader; use another name")
    return value


def _files(value: Any) -> Any:
    for name in value if isinstance(value, dict) else []:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise _refused(
                f"{str(name)[:40]!r} cannot name a file: names begin with a letter, and have"
                " letters, digits, `_`, `-` and `.`, without folders"
            )
    return value


def _name(value: Any) -> Any:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise _refused(
            "must be the name of a secret of the workspace, which `rung secret list` prints, and"
            " never its value"
        )
    return value


SecretName = Annotated[str, BeforeValidator(_name)]


class Secrets(Section):
    """Secrets of the workspace that trials get, and variables whose values are secrets."""

    environment: Annotated[
        dict[str, SecretName], BeforeValidator(_variables), Field(max_length=NAMED_MAX)
    ] = Field(default_factory=dict)
    """Environment variable → name of the workspace's secret that is its value."""
    files: Annotated[
        dict[str, SecretName], BeforeValidator(_files), Field(max_length=NAMED_MAX)
    ] = Field(default_factory=dict)
    """File → name of the workspace's secret that it holds, in the folder RUNG_SECRETS."""
    variables: Annotated[list[str], BeforeValidator(_variables)] = Field(default_factory=list)
    """Variables of `environment.environment_variables` that are secrets, though their names do not
    look like it."""

    def names(self) -> list[str]:
        """Return the workspace's secrets that are used, sorted."""
        return sorted({*self.environment.values(), *self.files.values()})
