"""The `data` section: a free map for the script, but for `sources`.

`sources` maps names to places, whose data agents fetch to the trial's machine before it starts.
"""

import posixpath
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from rung.config.code_archive import CodeArchive
from rung.config.problem import shortened

SOURCES_MAX: Final = 64

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_EXAMPLES: Final = "such as `s3://bucket/train`, `/srv/train`, or `train.csv` among the code"
_SWITCHES: Final = ("cache", "stream")


def _source(value: Any) -> Any:
    """Check one source: a place, or a map with a place and switches."""
    if isinstance(value, str):
        _check_location(value)
        return value
    if not isinstance(value, dict):
        raise _refused(f"must be a place, {_EXAMPLES}")
    location = value.get("location")
    if not isinstance(location, str):
        raise _refused(f"needs a `location`, {_EXAMPLES}")
    kept = {name: item for name, item in value.items() if item is not None}
    for name, item in kept.items():
        if name not in {"location", *_SWITCHES}:
            raise _refused(
                f"has no field `{shortened(str(name))}`; there are location, cache, stream"
            )
        if name in _SWITCHES and not isinstance(item, bool):
            raise _refused(f"`{name}` must be true or false")
    relative = _check_location(location)
    for name in _SWITCHES:
        if relative and kept.get(name):
            raise _refused(f"`{name}` goes with places outside the code, which is there anyway")
    if kept.get("cache") is False and location.startswith("s3:"):
        raise _refused(
            "`cache: false` goes with folders and files; what is in S3 is always cached"
        )
    return kept


def _check_location(location: str) -> bool:
    """Check a place; return whether it is a path among the experiment's code."""
    scheme = _SCHEME.match(location)
    if scheme and scheme[1] not in {"s3", "file"}:
        kind = shortened(scheme[1])
        raise _refused(f"`{kind}:` is no known kind of place; give one {_EXAMPLES}")
    if location.startswith("~"):
        raise _refused("`~` is another folder on each machine; write the whole path")
    if not location.strip() or "\0" in location:
        raise _refused(f"must not be empty; give a place {_EXAMPLES}")
    if scheme and scheme[1] == "s3":
        bucket, _, prefix = location.removeprefix("s3://").partition("/")
        if not location.startswith("s3://") or not _BUCKET.fullmatch(bucket):
            raise _refused(
                "must be like `s3://bucket/prefix`, with a bucket of lower-case letters"
            )
        path = PurePosixPath(prefix)
    else:
        path = PurePosixPath(location.removeprefix("file://"))
        if scheme and not path.is_absolute():
            raise _refused("must be like `file:///srv/train`, with three slashes")
    if ".." in path.parts:
        raise _refused("must not climb with `..`; write the whole path")
    return scheme is None and not path.is_absolute()


def missing_sources(data: Mapping[str, Any], code: CodeArchive | None) -> dict[str, str]:
    """Return by name the sources that are missing in the code, with their places."""
    missing: dict[str, str] = {}
    for name, source in data.get("sources", {}).items():
        location = source if isinstance(source, str) else source["location"]
        inside = posixpath.normpath(location)
        if _check_location(location) and not (code is not None and code.may_hold(inside)):
            missing[name] = location
    return missing


def _refused(message: str) -> PydanticCustomError:
    return PydanticCustomError("data_source", "{message}", {"message": message})


def _names(value: Any) -> Any:
    """Check the names, which become environment variables."""
    if not isinstance(value, dict):
        return value
    variables: dict[str, str] = {}
    for name in value:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _refused(
                f"{str(name)[:40]!r} cannot name a source: names begin with a letter, and have"
                " letters, digits, `_`, `-` and `.`"
            )
        variable = variable_of(name)
        if variable in variables:
            raise _refused(
                f"`{variables[variable]}` and `{name}` would both be {variable}; rename one"
            )
        variables[variable] = name
    return value


def variable_of(name: str) -> str:
    """Return the environment variable with the path of a source."""
    return f"RUNG_DATA_{re.sub('[^A-Z0-9]', '_', name.upper())}"


DataSource = Annotated[
    Any,
    BeforeValidator(_source),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {
                    "type": "object",
                    "properties": {
                        "location": {"type": "string", "minLength": 1},
                        "cache": {"type": ["boolean", "null"]},
                        "stream": {"type": ["boolean", "null"]},
                    },
                    "required": ["location"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
"""A place, or `{location: …, cache: …, stream: …}`."""


class _Data(TypedDict, total=False):
    """Free map for the script; `sources` names data that agents fetch for the trials."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]  # as pydantic wants it

    sources: Annotated[
        dict[str, DataSource],
        BeforeValidator(_names),
        Field(
            max_length=SOURCES_MAX,
            description="By name: a folder, a file, or `s3://bucket/prefix`.",
        ),
    ]


def _no_null(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("sources", ...) is None:
        return {name: item for name, item in value.items() if name != "sources"}
    return value


def no_data() -> _Data:
    """Return the section of a file that has none."""
    return {}


Data = Annotated[_Data, BeforeValidator(_no_null)]
"""The section."""
