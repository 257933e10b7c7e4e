"""ID tokens of an identity provider: verified by joserfc, and read as who somebody is there.

Only signatures with a key that the provider publishes count: never `none`, and never an HMAC,
whose key would be the provider's public one to a library that takes the algorithm of the token's
own header.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
_BYTES_MAX: Final = 64 * 1024
_GROUPS_MAX: Final = 1000
_TEXT_MAX: Final = 200


class BadIdToken(ValueError):
    """An ID token is not accepted; the message says why, without quoting it."""


class Claims(NamedTuple):
    """Who somebody is at an identity provider."""

    issuer: str
    subject: str
    """Their identifier there, which never changes and is given to nobody else."""
    name: str
    """The name that they sign in with there."""
    display_name: str
    email: str
    groups: tuple[str, ...] | None
    """Names of their groups, sorted; None: the provider does not say."""
    external_id: str = ""
    """The id by which the provider provisions them; empty: the token does not say."""


class Expected(NamedTuple):
    """What an ID token has to be."""

    issuer: str
    audience: str
    nonce: str | None
    """That of the sign-in; None where the flow has none, as with device codes."""
    skew_s: int
    groups_claim: str
    name_claim: str
    external_id_claim: str = "sub"


def read_id_token(text: str, keys: KeySet, expected: Expected, now_s: int) -> Claims:
    """Return the claims of an ID token.

    Args:
        text: the token.
        keys: of the provider.
        expected: what it has to be.
        now_s: Unix time.

    Raises:
        BadIdToken: it is not signed by the provider, is meant for another client, another
            sign-in or another time, or lacks a claim.
    """
    if len(text) > _BYTES_MAX:
        raise BadIdToken(f"it has more than {_BYTES_MAX:,} bytes")
    nonce = {} if expected.nonce is None else {"nonce": _the(expected.nonce)}
    registry = jwt.JWTClaimsRegistry(
        now=now_s,
        leeway=expected.skew_s,
        iss=_the(expected.issuer),
        sub={"essential": True},
        aud=_the(expected.audience),
        exp={"essential": True},
        iat={"essential": True},
        **nonce,
    )
    try:
        claims: dict[str, Any] = jwt.decode(text, keys, algorithms=ALGORITHMS).claims
        registry.validate(claims)
    except (JoseError, ValueError, TypeError) as error:
        raise BadIdToken(f"{type(error).__name__}: {str(error)[:_TEXT_MAX]}") from error
    _check_party(claims, expected.audience)
    return _read(claims, expected)


def _the(value: str) -> Any:
    return {"essential": True, "value": value}


def _check_party(claims: Mapping[str, Any], client_id: str) -> None:
    """Refuse a token for several clients that was not issued to this one."""
    audience, party = claims["aud"], claims.get("azp")
    if party is None and isinstance(audience, list) and len(audience) > 1:
        raise BadIdToken("it is for several clients, and does not name the one that asked (azp)")
    if party is not None and party != client_id:
        raise BadIdToken("it was issued to another client (azp)")


def _read(claims: Mapping[str, Any], expected: Expected) -> Claims:
    subject = _text(claims, "sub")
    if not subject:
        raise BadIdToken("it names nobody (sub)")
    email = _text(claims, "email") if claims.get("email_verified", True) is True else ""
    return Claims(
        issuer=expected.issuer,
        subject=subject,
        name=_text(claims, expected.name_claim) or email or subject,
        display_name=_text(claims, "name"),
        email=email,
        groups=_groups(claims, expected.groups_claim),
        external_id=_text(claims, expected.external_id_claim),
    )


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name, "")
    if not isinstance(value, str) or len(value) > _TEXT_MAX or not _printable(value):
        raise BadIdToken(f"its claim {name} is no text of up to {_TEXT_MAX} visible characters")
    return value


def _groups(claims: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = claims.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > _GROUPS_MAX:
        raise BadIdToken(f"its claim {name} is no list of up to {_GROUPS_MAX:,} names of groups")
    names = {group for group in value if isinstance(group, str)}
    if len(names) != len(value) or not all(map(_is_group, names)):
        raise BadIdToken(f"its claim {name} holds something else than names of groups")
    return tuple(sorted(names))


def _is_group(name: str) -> bool:
    return 0 < len(name) <= _TEXT_MAX and _printable(name)


def _printable(text: str) -> bool:
    return text.isprintable()
