"""Errors of S3, as object errors that say what to do, and whether a retry may succeed."""

import email.utils
import time
from typing import Final
from xml.etree import ElementTree as ET

from minio.error import InvalidResponseError, S3Error, ServerError
from urllib3 import exceptions as http

from rung.events.errors import ObjectError, ObjectMissing, ObjectUnavailable


class UploadGone(ObjectError):
    """The server does not know an upload in parts, or has other parts of it: begin a new one."""


class NoBucket(ObjectError):
    """The bucket does not exist."""


class KeysRefused(ObjectError):
    """The keys cannot be read, or are refused: they may be partly replaced."""


class Replaced(ObjectError):
    """The object was replaced while it was read."""


class OutOfRange(ObjectError):
    """The object ends before the requested range."""


_TRANSIENT: Final = frozenset(
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
_KINDS: Final[dict[str, type[ObjectError]]] = {
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
    "AllAccessDisabled": "all access to the bucket is disabled",
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
STATUS_TRANSIENT: Final = frozenset({408, 429, 500, 502, 503, 504})


def explain(error: Exception, doing: str, endpoint: str) -> ObjectError | None:
    """Return the error to raise instead; None if it is not about S3.

    Args:
        error: raised by the client.
        doing: the operation, such as "cannot read 'x' in s3://bucket".
        endpoint: of the server, for the message.
    """
    found: ObjectError | None = None
    match error:
        case ObjectError():
            found = error
        case S3Error():
            found = _of_answer(error, doing, endpoint)
        case ServerError():
            found = ObjectUnavailable(f"{doing}: {endpoint} answered {error.status_code}")
        case InvalidResponseError():
            found = _of_other_server(error, doing, endpoint)
        case http.SSLError():
            found = ObjectError(
                f"{doing}: no trust in {endpoint}: {_bare(error)};"
                " RUNG_S3_CA_FILE names the certificates of an authority of your own"
            )
        case http.HTTPError():
            found = ObjectUnavailable(f"{doing}: {endpoint} does not answer: {_bare(error)}")
        case ET.ParseError():
            found = ObjectUnavailable(f"{doing}: {endpoint} broke off its answer: {error}")
        case _:
            pass
    return found


def _of_answer(error: S3Error, doing: str, endpoint: str) -> ObjectError:
    code = error.code or ""
    if code in _KINDS:
        kind = _KINDS[code]
        if kind is ObjectMissing:
            return ObjectMissing(doing.replace("cannot read", "no object", 1))
        return kind(f"{doing}: {error.message} ({code})")
    if code == "RequestTimeTooSkewed":
        return ObjectError(f"{doing}: {_skew(error)}")
    if code in _FIXES:
        kind = KeysRefused if code in _OF_KEYS else ObjectError
        kind = NoBucket if code == "NoSuchBucket" else kind
        return kind(f"{doing}: {_FIXES[code]} ({code}, {endpoint})")
    text = f"{doing}: {endpoint} answered {code}: {error.message}"
    if code in _TRANSIENT or error.response.status in STATUS_TRANSIENT:
        return ObjectUnavailable(text)
    return ObjectError(text)


def _of_other_server(error: InvalidResponseError, doing: str, endpoint: str) -> ObjectError:
    status, kind = error._code, error._content_type  # noqa: SLF001 - said nowhere else
    if status in STATUS_TRANSIENT:
        return ObjectUnavailable(f"{doing}: {endpoint} answered {status}")
    return ObjectError(
        f"{doing}: what answers at {endpoint} is no S3 server (HTTP {status}, {kind});"
        " look at RUNG_S3_ENDPOINT"
    )


def _skew(error: S3Error) -> str:
    """Return the message about two clocks that differ."""
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
