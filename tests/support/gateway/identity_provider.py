"""The realm of the tests at a real identity provider: its people, groups and clients."""

from typing import Any, Final

REALM: Final = "company"
CLIENT_ID: Final = "rung"
CLIENT_SECRET: Final = "the-secret-of-the-client"  # noqa: S105 - of a server that only tests reach
CLI_CLIENT_ID: Final = "rung-cli"
PASSWORD: Final = "the-password-of-everybody"  # noqa: S105 - see above
PEOPLE: Final = {"anna": ["research", "operations"], "ben": ["research"], "carl": []}
"""Users and their groups."""
LOOPBACK: Final = "http://127.0.0.1/*"
"""Any port, as RFC 8252 wants it of redirections to programs on the user's machine."""


def realm() -> dict[str, Any]:
    """Return the realm's document."""
    return {
        "realm": REALM,
        "enabled": True,
        "sslRequired": "none",
        "groups": [{"name": name} for name in ("research", "operations")],
        "users": [_user(name, groups) for name, groups in PEOPLE.items()],
        "clients": [
            _client(CLIENT_ID, publicClient=False, secret=CLIENT_SECRET),
            _client(
                CLI_CLIENT_ID,
                publicClient=True,
                attributes={
                    "oauth2.device.authorization.grant.enabled": "true",
                    "oauth2.device.polling.interval": "1",
                },
            ),
        ],
    }


def _user(name: str, groups: list[str]) -> dict[str, Any]:
    return {
        "username": name,
        "enabled": True,
        "email": f"{name}@example.org",
        "emailVerified": True,
        "firstName": name.capitalize(),
        "lastName": "Example",
        "groups": [f"/{group}" for group in groups],
        "credentials": [{"type": "password", "value": PASSWORD, "temporary": False}],
    }


def _client(name: str, **more: Any) -> dict[str, Any]:
    groups = {
        "name": "groups",
        "protocol": "openid-connect",
        "protocolMapper": "oidc-group-membership-mapper",
        "config": {"claim.name": "groups", "full.path": "false", "id.token.claim": "true"},
    }
    return {
        "clientId": name,
        "enabled": True,
        "standardFlowEnabled": True,
        "directAccessGrantsEnabled": False,
        "redirectUris": [LOOPBACK],
        "protocolMappers": [groups],
        **more,
    }
