"""Settings of the service webhooks."""

import math
from typing import Literal
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from rung.subscription.address import PUBLIC, AddressRule


class Mail(Struct, frozen=True, kw_only=True):
    """The server of outgoing e-mail."""

    host: str
    port: int
    user: str
    password: str
    sender: str
    tls: Literal["always", "start", "none"]


class Settings(Struct, frozen=True, kw_only=True):
    """How the service delivers.

    Raises:
        ValueError: a value is out of range; the message names it and what would be right.
    """

    rule: AddressRule = PUBLIC
    """Where deliveries may go."""
    attempt_s: float = 15.0
    retry_s: float = 5.0
    """Bound of the wait after the first failed attempt; it doubles with each."""
    retry_max_s: float = 3600.0
    patience_s: float = 86_400.0
    """After which a delivery becomes a dead letter."""
    mail: Mail | None = None

    def __post_init__(self) -> None:
        for name in ("attempt_s", "retry_s", "retry_max_s", "patience_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}: give seconds, such as 15")


def mail_of_url(url: str, sender: str) -> Mail:
    """Return the server of an URL: `smtps://user:password@host`, `smtp://host:587`.

    Raises:
        ValueError: it is none, or there is no sender.
    """
    split = urlsplit(url)
    if split.scheme not in {"smtp", "smtps", "smtp+plain"} or not split.hostname:
        raise ValueError(
            "smtp: give smtps://USER:PASSWORD@HOST (TLS), smtp://HOST (STARTTLS), or"
            " smtp+plain://HOST (without encryption)"
        )
    if "@" not in sender:
        raise ValueError("mail_from: give the address of the sender, such as rung@example.com")
    always = split.scheme == "smtps"
    return Mail(
        host=split.hostname,
        port=split.port or (465 if always else 587 if split.scheme == "smtp" else 25),
        user=unquote(split.username or ""),
        password=unquote(split.password or ""),
        sender=sender,
        tls="always" if always else "start" if split.scheme == "smtp" else "none",
    )
