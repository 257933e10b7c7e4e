"""What goes wrong with S3, in words that say what to do; and whether it may pass by itself."""

import email.utils
import time
from typing import Final
from xml.etree import ElementTree as ET

from minio.error import InvalidResponseError, S3Error, ServerError
from urllib3 import exceptions as http

from rung.events.errors import ObjectError, ObjectMissing, ObjectUnavailable


class UploadGone(ObjectError):
    """An upload in parts is no longer known, or its parts are others': begin a new one."""


class NoBucket(ObjectError):
    """There is no bucket of that name."""


class KeysRefused(ObjectError):
    """The keys cannot be read, or the server does not take them: they may be half replaced."""


class Replaced(ObjectError):
    """The object is another than the one whose beginning was read."""


class OutOfRange(ObjectError):
    """The object ends before the range that was asked for."""


_PASSING: Final = frozenset(
    {
        "BadDigest",
        "IncompleteBody",
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "ServerBusy",
        "XAmzContentSHA256Mismatch",
        "XMinioServerNotInitialized",
    }
)
_SORTS: Final[dict[str, type[ObjectError]]] = {
    "InvalidPart": UploadGone,
    "InvalidPartOrder": UploadGone,
    "InvalidRange": OutOfRange,
    "NoSuchKey": ObjectMissing,
    "NoSuchUpload": UploadGone,
    "PreconditionFailed": Replaced,
}
_FIXES: Final[dict[str, str]] = {
    "AccessDenied": (
        "these keys may not do that; they need s3:GetObject, PutObject, DeleteObject,"
        " AbortMultipartUpload, ListMultipartUploadParts on the objects, and ListBucket,"
        " ListBucketMultipartUploads on the bucket"
    ),
    "AllAccessDisabled": "the bucket is closed to everybody",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set RUNG_S3_REGION",
    "EntityTooLarge": "the object is too large for this server",
    "ExpiredToken": "AWS_SESSION_TOKEN has expired; renew it",
    "InvalidAccessKeyId": "the server does not know this AWS_ACCESS_KEY_ID",
    "InvalidToken": "AWS_SESSION_TOKEN does not belong to AWS_ACCESS_KEY_ID",
    "NoSuchBucket": (
        "there is no such bucket; `rung cluster init` makes it, or name another in the URL"
    ),
    "PermanentRedirect": "the bucket is in another region; set RUNG_S3_REGION",
    "QuotaExceeded": "the quota is used up; free some space",
    "SignatureDoesNotMatch": (
        "AWS_SECRET_ACCESS_KEY does not belong to AWS_ACCESS_KEY_ID"
        " (or something on the way changes the requests)"
    ),
    "XMinioAdminBucketQuotaExceeded": "the bucket's quota is used up; free some space",
    "XMinioStorageFull": "the server's disks are full; free some space",
}
_OF_KEYS: Final = frozenset(
    {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"}
)
_STATUS_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})


def explain(error: Exception, doing: str, endpoint: str) -> ObjectError | None:
    """Return the error to raise instead; None if this is no trouble of S3's.

    Args:
        error: what the client raised.
        doing: such as "cannot read 'x' in s3://bucket".
        endpoint: the server.
    """
    trouble: ObjectError | None = None
    match error:
        case ObjectError():
            trouble = error
        case S3Error():
            trouble = _of_answer(error, doing, endpoint)
        case ServerError():
            trouble = ObjectUnavailable(f"{doing}: {endpoint} answered {error.status_code}")
        case InvalidResponseError():
            trouble = _of_stranger(error, doing, endpoint)
        case http.SSLError():
            trouble = ObjectError(
                f"{doing}: no trust in {endpoint}: {_bare(error)};"
                " RUNG_S3_CA_FILE names the certificates of an authority of your own"
            )
        case http.HTTPError():
            trouble = ObjectUnavailable(f"{doing}: {endpoint} does not answer: {_bare(error)}")
        case ET.ParseError():
            trouble = ObjectUnavailable(f"{doing}: {endpoint} broke off its answer: {error}")
        case _:
            pass
    return trouble


def _of_answer(error: S3Error, doing: str, endpoint: str) -> ObjectError:
    code = error.code or ""
    if code in _SORTS:
        sort = _SORTS[code]
        if sort is ObjectMissing:
            return ObjectMissing(doing.replace("cannot read", "no object", 1))
        return sort(f"{doing}: {error.message} ({code})")
    if code == "RequestTimeTooSkewed":
        return ObjectError(f"{doing}: {_skew(error)}")
    if code in _FIXES:
        kind = KeysRefused if code in _OF_KEYS else ObjectError
        kind = NoBucket if code == "NoSuchBucket" else kind
        return kind(f"{doing}: {_FIXES[code]} ({code}, {endpoint})")
    text = f"{doing}: {endpoint} answered {code}: {error.message}"
    if code in _PASSING or error.response.status in _STATUS_PASSING:
        return ObjectUnavailable(text)
    return ObjectError(text)


def _of_stranger(error: InvalidResponseError, doing: str, endpoint: str) -> ObjectError:
    status, kind = error._code, error._content_type  # noqa: SLF001 - said nowhere else
    if status in _STATUS_PASSING:
        return ObjectUnavailable(f"{doing}: {endpoint} answered {status}")
    return ObjectError(
        f"{doing}: what answers at {endpoint} is no S3 server (HTTP {status}, {kind});"
        " look at RUNG_S3_ENDPOINT"
    )


def _skew(error: S3Error) -> str:
    """Say by how much the two clocks differ."""
    try:
        theirs = email.utils.parsedate_to_datetime(error.response.headers["Date"])
    except (KeyError, ValueError):
        by = ""
    else:
        seconds = round(time.time() - theirs.timestamp())
        by = f" by {abs(seconds)} s"
    return (
        f"this machine's clock and the server's differ{by}, too much for a signature"
        " (RequestTimeTooSkewed); set both by NTP"
    )


def _bare(error: Exception) -> str:
    """Return the reason without the name of an object in this process's memory."""
    return str(error).rpartition(": ")[2] or type(error).__name__
