"""Settings of signing in."""

import yarl
from msgspec import Struct

from rung.gateway.identity.oidc.provider import ProviderSettings, is_safe


class IdentitySettings(Struct, frozen=True, kw_only=True):
    """How people sign in.

    Raises:
        ValueError: a value cannot be; the message names it and what would be right.
    """

    public_url: str | None = None
    """The address under which browsers reach this server; needed for an identity provider."""
    passwords: bool = True
    """Whether local accounts may sign in with passwords."""
    session_hours: float = 12.0
    """How long a session lasts."""
    provider: ProviderSettings | None = None
    """The identity provider; None: there are local accounts alone."""

    def __post_init__(self) -> None:
        if not 0.01 <= self.session_hours <= 24 * 90:
            raise ValueError(f"session_hours is {self.session_hours}: give 0.01 to 2160")
        if self.public_url is not None:
            parsed = yarl.URL(self.public_url) if is_safe(self.public_url) else None
            if parsed is None or parsed.query_string or parsed.path != "/":
                raise ValueError(
                    f"public_url is {self.public_url!r}: give an https address without a path,"
                    " such as https://rung.example.org"
                )
        elif self.provider is not None:
            raise ValueError("public_url is missing: the identity provider sends browsers there")

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach this server by https."""
        return self.public_url is not None and self.public_url.startswith("https://")

    @property
    def host_names(self) -> tuple[str, ...]:
        """The name under which browsers reach this server, if that is known."""
        host = None if self.public_url is None else yarl.URL(self.public_url).host
        return () if host is None else (host,)
