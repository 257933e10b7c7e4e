"""The sources that an experiment file names, as a run sees them.

    data:
      sources:
        train: s3://bucket/prefix
        labels: /srv/labels.csv
        tiny: {location: data/tiny.csv}
        images: {location: /mnt/share/images, cache: true, stream: true}

The file was checked when it was submitted (`rung.config.sections.data`); this reads what it says.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from msgspec import Struct

_NETWORK: Final = re.compile(
    r"nfs\d?|cifs|smb\w*|ceph|lustre|gpfs|beegfs|glusterfs|9p|afs|orangefs|fuse\.(?!overlay).*"
)


class Source(Struct, frozen=True):
    """Some data of an experiment."""

    name: str
    location: str
    """`s3://bucket/prefix`, an absolute path, or one among the experiment's code."""
    cache: bool | None = None
    """Whether to keep a copy on the node; None: if it comes over a network."""
    stream: bool = False
    """Whether the trial may begin before all files are there."""

    @property
    def in_s3(self) -> bool:
        """Whether it lies in S3."""
        return self.location.startswith("s3:")

    @property
    def path(self) -> Path:
        """The path, of one that does not lie in S3; relative where it is among the code."""
        assert not self.in_s3, self
        text = self.location
        return (
            Path(unquote(text.removeprefix("file://"))) if text.startswith("file:") else Path(text)
        )

    @property
    def cached(self) -> bool:
        """Whether a copy is kept on the node."""
        if self.in_s3 or self.cache is not None:
            return self.in_s3 or bool(self.cache)
        return self.path.is_absolute() and bool(_NETWORK.fullmatch(file_system_of(self.path)))


def sources_of(config: Mapping[str, Any]) -> list[Source]:
    """Return the sources that an experiment's configuration names."""
    data = config.get("data")
    named = data.get("sources") if isinstance(data, Mapping) else None
    if not isinstance(named, Mapping):
        return []
    return [_source(name, item) for name, item in named.items()]


def variable_of(name: str) -> str:
    """Return the environment variable with the path of a source."""
    return f"RUNG_DATA_{re.sub('[^A-Z0-9]', '_', name.upper())}"


def _source(name: str, item: Any) -> Source:
    if isinstance(item, str):
        return Source(name, item)
    cache = item.get("cache")
    return Source(name, str(item["location"]), cache, bool(item.get("stream")))


def file_system_of(path: Path) -> str:
    """Return the kind of file system that a path lies on; empty where that is unknown."""
    real = os.path.realpath(path)
    found, length = "", -1
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in lines.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= length:
            found, length = after.split()[0], len(point)
    return found
