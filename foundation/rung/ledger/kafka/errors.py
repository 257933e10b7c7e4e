"""What Kafka and the network say when something fails, in words that a person can act on."""

import ssl
from typing import Final

from aiokafka import errors

from rung.events.errors import LedgerDamaged, LedgerError, LedgerRefused, LedgerUnavailable

FAILURES: Final = (errors.KafkaError, OSError)
"""What a request to a broker may raise."""

_LOGIN: Final = (
    errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
)
_FORBIDDEN: Final = (
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
)
_ELSEWHERE: Final = {
    72,  # the listener is not there on every broker yet
}
"""Codes of passing errors that the client's library knows, and takes for lasting."""


def failed(code: int) -> errors.KafkaError:
    """Return the error of a code that a broker answered with."""
    kind = errors.for_code(code)
    if kind is errors.UnknownError:  # the client's library does not know it either
        error: errors.KafkaError = kind(f"the broker answered with the error code {code}")
    else:
        error = kind()
    if kind is errors.UnknownError or code in _ELSEWHERE:
        error.retriable = True
    return error


def passes(error: Exception) -> bool:
    """Whether the same request may succeed later without anybody's doing."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    if isinstance(error, (OSError, errors.KafkaTimeoutError)):
        return True
    return bool(getattr(error, "retriable", False))


def explain(error: Exception, what: str) -> LedgerError:
    """Turn a failure into what a person can act on.

    Args:
        error: what was raised.
        what: what was being done, such as `appending to rung.experiments/3`.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return LedgerRefused(
            f"{what}: the broker's certificate is not trusted ({error.verify_message}); "
            "RUNG_KAFKA_SSL_CAFILE names the authority that signed it, and the certificate must "
            "name the host of the URL"
        )
    if isinstance(error, _LOGIN):
        return LedgerRefused(
            f"{what}: the broker refuses the login ({told(error)}); check "
            "RUNG_KAFKA_SASL_USERNAME, RUNG_KAFKA_SASL_PASSWORD and RUNG_KAFKA_SASL_MECHANISM"
        )
    if isinstance(error, _FORBIDDEN):
        return LedgerRefused(
            f"{what}: the cluster does not allow it ({told(error)}); grant this user READ, WRITE, "
            "DESCRIBE and DESCRIBE_CONFIGS on the topics and READ on the groups that begin with "
            "the prefix"
        )
    if isinstance(error, errors.CorruptRecordException):
        return LedgerDamaged(f"{what}: the broker has damaged records ({told(error)})")
    kind = LedgerUnavailable if passes(error) else LedgerError
    return kind(f"{what}: {told(error)}")


def told(error: BaseException) -> str:
    """Return what an error says, with its kind."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    return text if text.startswith(kind) else f"{kind}: {text}" if text else kind
