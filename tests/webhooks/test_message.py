"""Messages: an event as each kind of receiver wants it; nothing of an experiment is markup."""

import base64
import time
from typing import Any

import msgspec
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message
from standardwebhooks import Webhook

from rung.subscription.cloud_event import cloud_event
from rung.subscription.document import Receiver
from rung.webhooks.message import body_of, headers_of, mail_of, text_of, usable_key
from rung.webhooks.settings import Mail, mail_of_url
from rung.webhooks.transport import Transport
from servers.process import free_port

KEY = "whsec_" + base64.b64encode(b"k" * 32).decode()
EVENT = cloud_event(
    "dlv_1",
    "/rung",
    "rung.trial.closed.v1",
    "e1.3",
    "2026-01-01T00:00:00.000Z",
    {
        "experiment_id": "e1",
        "trial_id": "e1.3",
        "state": "errored",
        "reason": "<script>\n@channel [x](http://y) <!everyone>",
        "experiment_name": "mnist",
    },
)


def test_slack_gets_a_text_without_markup() -> None:
    """What an experiment says is shown as it is, and mentions nobody."""
    text = msgspec.json.decode(body_of("slack", EVENT))["text"]
    first, *rest = text.splitlines()
    assert first == "e1.3: a trial has ended (mnist)"
    assert rest == [
        "state: errored",
        "reason: &lt;script&gt; @channel [x](http://y) &lt;!everyone&gt;",
    ]


def test_teams_gets_a_card() -> None:
    """In its text Markdown finds no links."""
    (attached,) = msgspec.json.decode(body_of("teams", EVENT))["attachments"]
    assert attached["contentType"] == "application/vnd.microsoft.card.adaptive"
    texts = [block["text"] for block in attached["content"]["body"]]
    assert len(texts) == 3
    assert "\\[x\\]\\(http://y\\)" in texts[2]


def test_the_signature_is_of_the_attempt_and_the_id_of_the_event() -> None:
    """A receiver that uses the specification's library accepts it; an altered body is refused."""
    body = body_of("cloudevents", EVENT)
    now = time.time()
    headers = headers_of("cloudevents", EVENT, body, KEY, now)
    later = headers_of("cloudevents", EVENT, body, KEY, now + 5)
    assert Webhook(KEY).verify(body, headers)["id"] == "dlv_1"
    assert headers["webhook-id"] == later["webhook-id"] == "dlv_1"
    assert headers["webhook-signature"] != later["webhook-signature"]
    with pytest.raises(Exception, match="No matching signature"):
        Webhook(KEY).verify(body + b" ", headers)
    assert "webhook-signature" not in headers_of("cloudevents", EVENT, body, "", now)


@pytest.mark.parametrize(
    ("key", "usable"),
    [(KEY, True), ("whsec_c2hvcnQ=", False), ("whsec_??", False), (KEY[6:], False), ("", False)],
)
def test_keys_are_those_of_the_specification(key: str, usable: bool) -> None:  # noqa: FBT001 - a table
    """Of 24 to 64 bytes, in base64, behind their prefix."""
    assert usable_key(key) is usable


def test_a_mail_is_one_of_a_thread_of_attempts() -> None:
    """Its Message-ID stays; no header can be injected."""
    evil = {**EVENT, "subject": "e1\r\nBcc: all@example.com"}
    mail = mail_of(evil, "rung@example.com", ["a@example.com"])
    assert mail["Bcc"] is None
    assert mail["Message-ID"] == "<dlv_1@rung.invalid>"
    assert text_of(EVENT).splitlines()[0] in mail_of(EVENT, "r@e.c", ["a@e.c"])["Subject"]


@pytest.mark.processes
async def test_mail_is_sent_to_a_real_server() -> None:
    """And a server that is away is a failed attempt."""
    got: list[Any] = []

    class Keeps(Message):
        def handle_message(self, message: Any) -> None:
            got.append(message)

    server = Controller(Keeps(), hostname="127.0.0.1", port=free_port())
    server.start()
    try:
        mail = Mail(
            host="127.0.0.1", port=server.port, user="", password="", sender="r@e.c", tls="none"
        )
        receiver = Receiver(mail_to=["a@example.com"])
        found = await Transport(mail=mail).deliver("email", receiver, EVENT)
        assert found.delivered, found
    finally:
        server.stop()
    (message,) = got
    assert message["To"] == "a@example.com"
    assert not (await Transport(mail=mail).deliver("email", receiver, EVENT)).delivered
    assert not (await Transport().deliver("email", receiver, EVENT)).delivered


def test_the_address_of_a_mail_server_is_read() -> None:
    """With its way of encryption; what is none is refused."""
    found = mail_of_url("smtps://u%40x:p@mail.example.com", "r@e.c")
    assert (found.host, found.port, found.user, found.tls) == (
        "mail.example.com",
        465,
        "u@x",
        "always",
    )
    assert mail_of_url("smtp://mail.example.com", "r@e.c").tls == "start"
    for url, sender in (("http://x", "r@e.c"), ("smtp://", "r@e.c"), ("smtp://x", "nobody")):
        with pytest.raises(ValueError, match="give"):
            mail_of_url(url, sender)
