"""Prints the document that releases promise: `python -m rung.gateway.openapi.record`.

Without examples, which are no promise, and without a version of a release.
"""

import sys
from typing import Any

import msgspec

from rung.gateway.openapi.document import make_openapi


def promised() -> dict[str, Any]:
    """Return the OpenAPI document as it is recorded."""
    document = make_openapi()
    document["info"]["version"] = "v1"
    for operation in (each for item in document["paths"].values() for each in item.values()):
        contents = [it["content"] for it in operation["responses"].values()]
        contents.append(operation.get("requestBody", {"content": {}})["content"])
        parts = [each for content in contents for each in content.values()]
        for part in (*operation.get("parameters", []), *parts):
            part.pop("example", None)
    return document


if __name__ == "__main__":
    text = msgspec.json.format(msgspec.json.encode(promised()), indent=1)
    sys.stdout.write(f"{text.decode()}\n")
