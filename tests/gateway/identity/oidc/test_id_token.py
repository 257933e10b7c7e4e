"""ID tokens: each thing that a forger or a careless provider could do."""

import base64
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from rung.gateway.identity.oidc.id_token import BadIdToken, Claims, Expected, read_id_token

NOW = 1_800_000_000
ISSUER = "https://id.example.org"
KEY = RSAKey.generate_key(2048, {"kid": "one"})
OTHER = RSAKey.generate_key(2048, {"kid": "one"})
CURVE = ECKey.generate_key("P-256", {"kid": "curve"})
KEYS = KeySet.import_key_set({"keys": [KEY.as_dict(private=False), CURVE.as_dict(private=False)]})
EXPECTED = Expected(ISSUER, "rung", "the-nonce", 60, "groups", "preferred_username")
CLAIMS: dict[str, Any] = {
    "iss": ISSUER,
    "sub": "4711",
    "aud": "rung",
    "azp": "rung",
    "exp": NOW + 300,
    "iat": NOW,
    "nonce": "the-nonce",
    "preferred_username": "anna",
    "name": "Anna Example",
    "email": "anna@example.org",
    "email_verified": True,
    "groups": ["research", "operations"],
}


def _signed(key: Any = KEY, header: dict[str, Any] | None = None, **claims: Any) -> str:
    wanted = {name: value for name, value in (CLAIMS | claims).items() if value is not ...}
    protected = {"alg": "RS256", "kid": "one"} | (header or {})
    return jwt.encode(protected, wanted, key, algorithms=[protected["alg"]])


def _read(text: str, **expected: Any) -> Claims:
    return read_id_token(text, KEYS, EXPECTED._replace(**expected), NOW)


def test_a_good_one() -> None:
    """Who it is, with sorted groups."""
    assert _read(_signed()) == Claims(
        ISSUER,
        "4711",
        "anna",
        "Anna Example",
        "anna@example.org",
        ("operations", "research"),
        "4711",
    )


def test_another_algorithm_of_the_provider() -> None:
    """Elliptic curves count as RSA does."""
    text = _signed(CURVE, {"alg": "ES256", "kid": "curve"})
    assert _read(text).subject == "4711"


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"},
        {"iss": f"{ISSUER}/"},
        {"iss": ...},
        {"sub": ...},
        {"sub": ""},
        {"sub": 4711},
        {"aud": "another"},
        {"aud": ...},
        {"aud": ["another", "rung"], "azp": ...},
        {"azp": "another"},
        {"exp": NOW - 61},
        {"exp": ...},
        {"exp": "never"},
        {"iat": NOW + 61},
        {"nbf": NOW + 61},
        {"iat": ...},
        {"nonce": "another"},
        {"nonce": ...},
        {"groups": "research"},
        {"groups": [1]},
        {"groups": ["a\nb"]},
        {"groups": [""]},
        {"groups": [str(number) for number in range(1001)]},
        {"preferred_username": "an\nna"},
        {"preferred_username": ["anna"]},
        {"name": "x" * 201},
    ],
    ids=str,
)
def test_claims_that_are_refused(claims: dict[str, Any]) -> None:
    """A token for somebody else, somewhere else, another time, or with claims that are none."""
    with pytest.raises(BadIdToken):
        _read(_signed(**claims))


@pytest.mark.parametrize("claims", [{"exp": NOW - 59}, {"iat": NOW + 59}, {"nbf": NOW + 59}])
def test_clocks_may_differ_a_little(claims: dict[str, Any]) -> None:
    """A minute is as configured."""
    assert _read(_signed(**claims)).name == "anna"
    with pytest.raises(BadIdToken):
        _read(_signed(**claims), skew_s=0)


def test_no_signature() -> None:
    """`none` is no algorithm, however it is written."""
    payload = _part(CLAIMS)
    for name in ("none", "None", "NONE"):
        header = _part({"alg": name, "kid": "one"})
        for signature in ("", "AAAA"):
            with pytest.raises(BadIdToken):
                _read(f"{header}.{payload}.{signature}")


def test_the_public_key_as_a_secret() -> None:
    """An HMAC by the published key is refused."""
    for text in (KEY.as_pem(private=False), json.dumps(KEY.as_dict(private=False)).encode()):
        signed = f"{_part({'alg': 'HS256', 'kid': 'one'})}.{_part(CLAIMS)}"
        signature = hmac.digest(text, signed.encode(), "sha256")
        with pytest.raises(BadIdToken):
            _read(f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}")


def test_a_key_of_somebody_else() -> None:
    """Neither under a published name, nor brought along in the header."""
    with pytest.raises(BadIdToken):
        _read(_signed(OTHER))
    with pytest.raises(BadIdToken):
        _read(_signed(OTHER, {"jwk": OTHER.as_dict(private=False)}))
    with pytest.raises(BadIdToken):
        _read(_signed(OTHER, {"kid": "unknown"}))


def test_a_changed_claim() -> None:
    """The signature covers all."""
    header, _, signature = _signed().split(".")
    with pytest.raises(BadIdToken):
        _read(f"{header}.{_part(CLAIMS | {'sub': '1'})}.{signature}")


def test_claims_that_are_not_there() -> None:
    """A name falls back on the address and the subject; no groups are not the same as none."""
    bare = _read(_signed(preferred_username=..., name=..., groups=...))
    assert (bare.name, bare.display_name, bare.groups) == ("anna@example.org", "", None)
    nobody = _read(_signed(preferred_username=..., email=..., groups=[]))
    assert (nobody.name, nobody.groups) == ("4711", ())


def test_an_address_that_is_not_verified() -> None:
    """It names nobody: anybody could have written it."""
    found = _read(_signed(preferred_username=..., email_verified=False))
    assert (found.name, found.email) == ("4711", "")


@given(st.text() | st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_anything_else(text: str) -> None:
    """Whatever comes, it is refused in the one way."""
    for candidate in (text, f"{text}.{text}.{text}", f"{_part({'alg': 'RS256'})}.{text}.AAAA"):
        with pytest.raises(BadIdToken):
            _read(candidate)


def test_a_large_one() -> None:
    """It is not even decoded."""
    with pytest.raises(BadIdToken, match="bytes"):
        _read("x" * 100_000)


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
