"""Secrets are in no byte that Rung stores or answers, and trials get them all the same."""

import asyncio
import contextlib
import json
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp
import pytest

from rung.client import Client
from support.installation import Installation, files_below

PLANTED: Final = {
    kind: f"pl4nted-{kind}-secret"
    for kind in (
        "token", "nested", "login", "identity", "auth", "access", "connection", "url", "variable",
        "marked", "repeated", "pod", "pachyderm", "storage", "printed", "traceback", "typo",
        "syntax", "refused", "shape", "header", "exit", "description", "multiline",
    )
}  # fmt: skip
"""Kind → a secret of that kind."""
S: Final = PLANTED

SCRIPT: Final = f"""
import json, os, sys
from rung import core
with core.init() as context:
    config = context.info.trial.config
    assert config["data"]["secrets"]["token"] == {S["token"]!r}
    assert config["data"]["secrets"]["nested"] == [{{"pin": {S["nested"]!r}}}, 4711]
    assert os.environ["HF_TOKEN"] == {S["variable"]!r}
    assert os.environ["LICENCE"] == {S["marked"]!r}
    assert os.environ["BROKER"] == "amqp://me:{S["url"]}@host/x"
    assert {S["login"]!r} not in json.dumps(config), "a login that it has no use for"
    assert {S["token"]!r} not in open("/proc/self/cmdline").read()
    print("printed", {S["printed"]!r})
    print("on two lines", config["data"]["secrets"]["key"], file=sys.stderr)
    context.train.report_validation_metrics(1, {{"loss": 0.5}})
    raise SystemExit({S["exit"]!r})
"""

FILE: Final = f"""
name: planted
description: "what the notes say: {S["description"]}"
entrypoint: python3 train.py
max_restarts: 0
searcher: {{name: single, metric: loss, max_time: 1, time_metric: batches}}
secrets: {{variables: [LICENCE]}}
data:
  secrets:
    token: {S["token"]}
    nested: [{{pin: {S["nested"]}}}, 4711]
    printed: {S["printed"]}
    exit: {S["exit"]}
    description: {S["description"]}
    repeated: {S["repeated"]}
    key: |
      -----BEGIN KEY-----
      {S["multiline"]}
      -----END KEY-----
  # a comment repeats it: {S["repeated"]}
  note: also here, {S["repeated"]}
  login: {{password: {S["header"]}}}
environment:
  environment_variables:
    - HF_TOKEN={S["variable"]}
    - LICENCE={S["marked"]}
    - BROKER=amqp://me:{S["url"]}@host/x
  registry_auth:
    username: me
    password: {S["login"]}
    auth: {S["auth"]}
    identitytoken: {S["identity"]}
  pod_spec: {{spec: {{containers: [{{env: [{{name: DB_PASSWORD, value: {S["pod"]}}}]}}]}}}}
checkpoint_storage:
  {{type: s3, bucket: bucket, access_key: {S["access"]}, secret_key: {S["storage"]}}}
tensorboard_storage: {{type: s3, bucket: bucket, secret_key: {S["connection"]}}}
integrations:
  pachyderm:
    pachd: {{host: h, port: 80}}
    proxy: {{scheme: https, host: h, port: 80}}
    dataset: {{project: p, repo: r, commit: c, branch: b, token: {S["pachyderm"]}}}
"""

REFUSED: Final = {
    "unknown field": f"api_token: {S['typo']}\n",
    "no YAML": f"data: {{secrets: {{token: '{S['syntax']}}}}}\n",
    "a password that is an alias": f"data: {{login: {{password: *{S['refused']} }}}}\n",
    "a password that is a tag": f"data: {{login: {{password: !{S['refused']} x}}}}\n",
    "a variable in the wrong shape": (
        f"environment: {{environment_variables: 'A_TOKEN={S['shape']}'}}\n"
    ),
    "a list for a map": f"environment: ['A_TOKEN={S['shape']}', 'ftp://a:{S['shape']}@b/x']\n",
}
BODY: Final = (
    "name: refused\nentrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"
)


@pytest.mark.e2e
def test_no_byte_has_a_secret(  # noqa: PLR0915 - one installation for all kinds
    installation: Installation, tmp_path: Path
) -> None:
    """Files, ledger, exports, archives, logs, answers; of accepted and of refused files."""
    code = tmp_path / "code"
    code.mkdir()
    script = SCRIPT
    for kind in ("printed", "exit"):
        script = script.replace(repr(S[kind]), f"config['data']['secrets'][{kind!r}]")
    for kind in S:  # the code is the author's own, so it must not hold them
        script = script.replace(repr(S[kind]), f"open({str(tmp_path)!r} + '/{kind}').read()")
        script = script.replace(f'"amqp://me:{S[kind]}@host/x"', f"open('{tmp_path}/amqp').read()")
        (tmp_path / kind).write_text(S[kind])
    (tmp_path / "amqp").write_text(f"amqp://me:{S['url']}@host/x")
    (code / "train.py").write_text(script)
    assert not any(secret in script for secret in S.values())
    url, token = installation.server
    answers: list[bytes] = []
    headers = {"Authorization": f"Bearer {token}"}

    def ask(path: str, *, config: str | None = None, key: str = "", kind: str = "POST") -> Answer:
        return asyncio.run(_asked(f"{url}/api/v1{path}", headers, kind, config, key))

    answers.append(ask("/experiments/validate", config=FILE).content)
    for text in REFUSED.values():
        answer = ask("/experiments", config=BODY + text)
        assert answer.status == 422, answer.content
        answers.append(answer.content)
    client = Client(url=url, token=token)
    experiment = client.submit(FILE, code)
    module = FILE.replace("train.py", "-m x")
    changed = module.replace(S["token"], "another-secret")
    first = ask("/experiments", config=module, key="planted-once")
    again = ask("/experiments", config=module, key="planted-once")
    other = ask("/experiments", config=changed, key="planted-once")
    answers += [first.content, again.content, other.content]
    installation.rung("wait", experiment.id, check=False)
    trial = f"{experiment.id}.0"
    paths = (
        "/experiments", f"/experiments/{experiment.id}", f"/trials/{trial}",
        f"/trials/{trial}/logs", "/status", "/deadletters", "/openapi.json",
        f"/experiments?filter={S['header'][:4]}",
    )  # fmt: skip
    found = [ask(path, kind="GET") for path in paths]
    answers += [answer.content for answer in found]
    logs = found[3].content.decode()
    assert "printed ********" in logs, logs
    assert "on two lines" in logs, logs
    assert "AssertionError" not in logs, logs
    for command in (
        ("show", experiment.id), ("show", experiment.id, "--json"), ("logs", trial),
        ("fork", experiment.id, "--set", "max_restarts=1"), ("ledger", "show"), ("status",),
    ):  # fmt: skip
        done = installation.rung(*command, check=False)
        answers += [done.stdout.encode(), done.stderr.encode()]
    installation.rung("ledger", "export", "-o", str(tmp_path / "all.jsonl"), check=False)
    installation.rung("ledger", "archive", "--to", (tmp_path / "archive").as_uri(), check=False)
    processes = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, check=True)
    answers.append(processes.stdout)
    while_up = _holding(installation.folder)
    installation.down()

    assert while_up == []
    assert _holding(installation.folder) == []
    assert _holding(tmp_path / "archive") == []
    assert [answer for answer in answers if _secrets_in(answer)] == []
    export = tmp_path / "all.jsonl"
    assert export.stat().st_size > 0
    assert _secrets_in(export.read_bytes()) == []
    assert json.loads(again.content)["experiment_id"] == json.loads(first.content)["experiment_id"]
    assert (first.status, again.status, other.status) == (201, 201, 422)


class Answer(NamedTuple):
    """What the gateway answered."""

    status: int
    content: bytes


async def _asked(
    url: str, headers: dict[str, str], kind: str, config: str | None, key: str
) -> Answer:
    body: aiohttp.FormData | str | None = config
    if config is not None and url.endswith("/experiments"):
        body = aiohttp.FormData()
        body.add_field("config", config, filename="config.yaml")
    sent = headers | ({"Idempotency-Key": key} if key else {})
    if isinstance(body, str):
        sent["Content-Type"] = "application/yaml"
    async with (
        aiohttp.ClientSession() as session,
        session.request(kind, url, data=body, headers=sent) as answer,
    ):
        return Answer(answer.status, await answer.read())


def _holding(folder: Path) -> list[tuple[str, list[str]]]:
    """Return the files below a folder that hold secrets, and which."""
    files = files_below(folder)
    assert files or not folder.exists()
    found = []
    for path in files:
        with contextlib.suppress(FileNotFoundError):  # gone meanwhile
            found.append((str(path.relative_to(folder)), _secrets_in(path.read_bytes())))
    return [(path, secrets) for path, secrets in found if secrets]


def _secrets_in(data: bytes) -> list[str]:
    escaped = json.dumps
    return [
        kind
        for kind, secret in S.items()
        if secret.encode() in data or escaped(secret).encode() in data
    ]
