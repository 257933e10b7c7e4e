"""Errors of Kafka and the network, as errors of the ledger that say what to do."""

import ssl
from typing import Final

from aiokafka import errors

from rung.events.errors import LedgerDamaged, LedgerError, LedgerRefused, LedgerUnavailable

FAILURES: Final = (errors.KafkaError, OSError)
"""Errors that a request to a broker may raise."""

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
_TRANSIENT: Final = {
    72,  # the listener is not there on every broker yet
}
"""Codes of transient errors that aiokafka takes for permanent."""


def error_of(code: int) -> errors.KafkaError:
    """Return the error of a broker's error code."""
    kind = errors.for_code(code)
    if kind is errors.UnknownError:  # aiokafka does not know it
        error: errors.KafkaError = kind(f"the broker answered with the error code {code}")
    else:
        error = kind()
    if kind is errors.UnknownError or code in _TRANSIENT:
        error.retriable = True
    return error


def is_transient(error: Exception) -> bool:
    """Return whether a retry of the same request may succeed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    if isinstance(error, (OSError, errors.KafkaTimeoutError)):
        return True
    return bool(getattr(error, "retriable", False))


def explain(error: Exception, what: str) -> LedgerError:
    """Return the ledger's error for a failure of `what`, such as `appending to rung.pools/3`."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return LedgerRefused(
            f"{what}: the broker's certificate is not trusted ({error.verify_message}); "
            "RUNG_KAFKA_SSL_CAFILE names the authority that signed it, and the certificate must "
            "name the host of the URL"
        )
    if isinstance(error, _LOGIN):
        return LedgerRefused(
            f"{what}: the broker refuses the login ({describe(error)}); check "
            "RUNG_KAFKA_SASL_USERNAME, RUNG_KAFKA_SASL_PASSWORD and RUNG_KAFKA_SASL_MECHANISM"
        )
    if isinstance(error, _FORBIDDEN):
        return LedgerRefused(
            f"{what}: the cluster does not allow it ({describe(error)}); grant this user READ, "
            "WRITE, DESCRIBE and DESCRIBE_CONFIGS on the topics and READ on the groups that "
            "begin with the prefix"
        )
    if isinstance(error, errors.CorruptRecordException):
        return LedgerDamaged(f"{what}: the broker has damaged records ({describe(error)})")
    kind = LedgerUnavailable if is_transient(error) else LedgerError
    return kind(f"{what}: {describe(error)}")


def describe(error: BaseException) -> str:
    """Return the text of an error, with its type."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    return text if text.startswith(kind) else f"{kind}: {text}" if text else kind
