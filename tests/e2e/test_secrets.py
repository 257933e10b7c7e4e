"""Secrets are in no byte that Rung stores or answers, and trials get them all the same."""

import asyncio
import contextlib
import gzip
import hashlib
import json
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import pytest

from rung.client import Client
from support.installation import Installation, files_below
from support.user import wait_for

PLANTED: Final = {
    kind: f"pl4nted-{kind}-secret"
    for kind in (
        "token", "nested", "login", "identity", "auth", "access", "connection", "url", "variable",
        "marked", "repeated", "pod", "pachyderm", "storage", "printed", "traceback", "typo",
        "syntax", "refused", "shape", "header", "exit", "description", "multiline",
        "shared", "filed", "password", "mistyped", "hook-path", "hook-query", "hook-login",
    )
}  # fmt: skip
"""Kind → a secret of that kind; tokens and keys that the gateway draws are in `Planted`."""
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
    assert os.environ["SHARED"] == {S["shared"]!r}
    filed = open(os.environ["RUNG_SECRETS"] + "/filed.txt").read()
    assert filed == {S["filed"]!r}
    assert os.environ["BROKER"] == "amqp://me:{S["url"]}@host/x"
    assert {S["login"]!r} not in json.dumps(config), "a login that it has no use for"
    assert {S["token"]!r} not in open("/proc/self/cmdline").read()
    print("printed", {S["printed"]!r})
    print("shared", os.environ["SHARED"], "filed", filed)
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
secrets:
  variables: [LICENCE]
  environment: {{SHARED: shared}}
  files: {{filed.txt: filed}}
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


class Answer(NamedTuple):
    """What the gateway answered."""

    status: int
    content: bytes

    @property
    def json(self) -> Any:
        """The content."""
        return json.loads(self.content)


class Planted(NamedTuple):
    """What an installation left that had all kinds of secrets; it is stopped."""

    folder: Path
    """Its data folder."""
    archive: Path
    """The archive of its ledger."""
    export: Path
    """The export of its ledger."""
    secrets: dict[str, str]
    """Kind → secret: `PLANTED`, and those that the gateway drew."""
    while_up: list[tuple[str, list[str]]]
    """The files that held secrets while it ran, and which."""
    answers: list[bytes]
    """What it answered and printed, but for the answers that show a secret once."""
    logs: str
    """What the trial printed, as the gateway shows it."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """Plant each kind of secret in an installation, use it, and stop that."""
    folder = tmp_path_factory.mktemp("planted")
    installation = Installation(folder / "data")
    installation.up()
    try:
        return _planted(installation, folder)
    finally:
        installation.down()


def _planted(installation: Installation, folder: Path) -> Planted:
    gateway = Gateway(*installation.server)
    secrets = S | {"root": gateway.token}
    answers = _refusals(gateway)
    secrets |= _people(gateway, answers)
    secrets["hook-key"] = _webhook(gateway, answers)
    for name in ("shared", "filed"):
        _set(gateway, name, S[name], answers)
    answers.append(gateway.ask("/experiments/validate", FILE).content)
    client = Client(url=gateway.url, token=gateway.token)
    experiment = client.submit(FILE, _code(folder)).id
    answers += _once(gateway)
    installation.rung("wait", experiment, check=False)
    hook = wait_for(lambda: _delivered(gateway), "a delivery failed")
    trial = f"{experiment}.0"
    logs = gateway.ask(f"/trials/{trial}/logs", kind="GET").content
    answers += [hook, logs]
    paths = (
        "/experiments", f"/experiments/{experiment}", f"/trials/{trial}", "/status",
        "/deadletters", "/openapi.json", f"/experiments?filter={S['header'][:4]}", "/users",
        "/service-accounts", "/tokens", "/tokens?user=robot", "/webhooks", "/log",
        "/workspaces/default/secrets",
    )  # fmt: skip
    for path in paths:
        answer = gateway.ask(path, kind="GET")
        assert answer.status == 200, (path, answer)
        answers.append(answer.content)
    export, archive = folder / "all.jsonl", folder / "archive"
    for command in (
        ("show", experiment), ("show", experiment, "--json"), ("logs", trial), ("ledger", "show"),
        ("ledger", "show", experiment, "--full"), ("status",), ("secret", "list"), ("log",),
        ("webhook", "show", "hook"), ("user", "list"), ("token", "list"),
        ("ledger", "export", "-o", str(export)), ("ledger", "archive", "--to", archive.as_uri()),
    ):  # fmt: skip
        done = installation.rung(*command)
        answers += [done.stdout.encode(), done.stderr.encode()]
    asked_again = installation.rung("fork", experiment, "--set", "max_restarts=1", check=False)
    answers += [asked_again.stdout.encode(), asked_again.stderr.encode()]
    processes = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, check=True)
    answers.append(processes.stdout)
    while_up = _holding(installation.folder, secrets)
    data = installation.folder
    return Planted(data, archive, export, secrets, while_up, answers, logs.decode())


def _code(folder: Path) -> Path:
    """Write code that is without secrets, because it is stored as it is; return its folder."""
    code, script = folder / "code", SCRIPT
    code.mkdir()
    for kind in ("printed", "exit"):
        script = script.replace(repr(S[kind]), f"config['data']['secrets'][{kind!r}]")
    for kind in S:
        script = script.replace(repr(S[kind]), f"open({str(folder)!r} + '/{kind}').read()")
        script = script.replace(f'"amqp://me:{S[kind]}@host/x"', f"open('{folder}/amqp').read()")
        (folder / kind).write_text(S[kind])
    (folder / "amqp").write_text(f"amqp://me:{S['url']}@host/x")
    (code / "train.py").write_text(script)
    assert _secrets_in(script.encode(), S) == []
    return code


def _refusals(gateway: "Gateway") -> list[bytes]:
    found = []
    for text in REFUSED.values():
        answer = gateway.ask("/experiments", BODY + text)
        assert answer.status == 422, answer
        found.append(answer.content)
    return found


def _once(gateway: "Gateway") -> list[bytes]:
    """Submit under one key: a file, the same again, and one with another secret."""
    module = FILE.replace("train.py", "-m x")
    changed = module.replace(S["token"], "another-secret")
    first, again, other = (
        gateway.ask("/experiments", text, key="planted-once") for text in (module, module, changed)
    )
    assert (first.status, again.status, other.status) == (201, 201, 422)
    assert again.json["experiment_id"] == first.json["experiment_id"]
    return [first.content, again.content, other.content]


def _people(gateway: "Gateway", answers: list[bytes]) -> dict[str, str]:
    """Create a person with a password, and a service account; return what they sign in with."""
    for path, body in (
        ("/users", {"name": "ann"}),
        ("/users/ann/password", {"password": S["password"]}),
        ("/service-accounts", {"name": "robot"}),
    ):
        answer = gateway.ask(path, body)
        assert answer.status in {200, 201}, answer
        answers.append(answer.content)
    wrong = gateway.ask("/auth/password", {"name": "ann", "password": S["mistyped"]})
    assert wrong.status == 401, wrong
    answers.append(wrong.content)
    session = gateway.ask("/auth/password", {"name": "ann", "password": S["password"]})
    ann = Gateway(gateway.url, session.json["token"])
    personal = ann.ask("/tokens", {"name": "personal"})
    service = gateway.ask("/tokens", {"name": "service", "user": "robot"})
    drawn = {
        "session": ann.token,
        "personal": personal.json["secret"],
        "service": service.json["secret"],
    }
    for kind, token in drawn.items():
        answer = Gateway(gateway.url, token).ask("/auth/methods", kind="GET")
        assert answer.json["user"] == ("robot" if kind == "service" else "ann"), answer
        answers.append(answer.content)
    return drawn


def _webhook(gateway: "Gateway", answers: list[bytes]) -> str:
    """Create a webhook that nothing receives; return the key that signs its deliveries."""
    wanted = {"name": "hook", "events": ["rung.experiment.ended.v1"]}
    login = f"https://me:{S['hook-login']}@hooks.invalid/"
    refused = gateway.ask("/webhooks", wanted | {"url": login})
    assert refused.status == 422, refused
    answers.append(refused.content)
    address = f"https://hooks.invalid/{S['hook-path']}?key={S['hook-query']}"
    made = gateway.ask("/webhooks", wanted | {"url": address})
    assert made.status == 201, made
    return str(made.json["key"])


def _delivered(gateway: "Gateway") -> bytes | None:
    """Return the deliveries of the webhook, once one was tried."""
    answer = gateway.ask("/webhooks/hook/deliveries", kind="GET")
    return answer.content if any(it["attempts"] for it in answer.json["items"]) else None


def _set(gateway: "Gateway", name: str, value: str, answers: list[bytes]) -> None:
    """Set a secret of the workspace."""
    answer = gateway.ask("/workspaces/default/secrets", {"name": name, "value": value})
    assert answer.status in {200, 201}, answer
    answers.append(answer.content)


@pytest.mark.e2e
def test_no_file_has_a_secret(planted: Planted) -> None:
    """Of the data folder, while it is in use and after, packed or not; one is there to sign in."""
    to_sign_in = [("token", ["root"]), ("up.out", ["root"])]
    assert planted.while_up == to_sign_in
    assert _holding(planted.folder, planted.secrets) == to_sign_in
    assert {(planted.folder / name).stat().st_mode & 0o077 for name, _ in to_sign_in} == {0}
    series = _series(planted.folder / "series")
    assert _secrets_in(series, planted.secrets) == []

    (code,) = (planted.folder / "objects" / "code").iterdir()
    assert b"from rung import core" not in code.read_bytes()
    assert b"from rung import core" in _unpacked(code)
    assert b"on two lines" in series


@pytest.mark.e2e
def test_no_archive_and_no_export_has_a_secret(planted: Planted) -> None:
    """Nor has any segment of the archive, which is packed."""
    assert _holding(planted.archive, planted.secrets) == []
    assert _secrets_in(planted.export.read_bytes(), planted.secrets) == []

    event = b"rung.experiment.submitted.v1"
    (topic,) = planted.archive.glob("archive/*/experiments")
    assert any(event in _unpacked(path) for path in files_below(topic))
    assert event in planted.export.read_bytes()


@pytest.mark.e2e
def test_no_answer_has_a_secret(planted: Planted) -> None:
    """Of the gateway and of commands, to accepted and to refused requests; nor has `ps`."""
    found = [(answer, _secrets_in(answer, planted.secrets)) for answer in planted.answers]
    assert [(answer, kinds) for answer, kinds in found if kinds] == []


@pytest.mark.e2e
def test_a_trial_has_its_secrets_and_prints_none(planted: Planted) -> None:
    """It holds all that it was given; in its log they are masked."""
    assert "AssertionError" not in planted.logs
    for line in ("printed ********", "shared ******** filed ********", "on two lines"):
        assert line in planted.logs


@pytest.mark.e2e
def test_a_secret_is_found_in_what_is_packed(tmp_path: Path) -> None:
    """In a segment, whose first member of gzip is a header, and in a code archive."""
    member = tmp_path / "train.py"
    member.write_text("# " * 5000 + S["token"])
    with tarfile.open(tmp_path / "code.tar.gz", "w:gz") as code:
        code.add(member, "train.py")
    member.unlink()
    lines = json.dumps({"note": S["nested"]}).encode()
    (tmp_path / "0-1.jsonl.gz").write_bytes(gzip.compress(b"{}\n") + gzip.compress(lines))

    assert not any(_secrets_in(path.read_bytes(), S) for path in tmp_path.iterdir())
    expected = [("0-1.jsonl.gz", ["nested"]), ("code.tar.gz", ["token"])]
    assert _holding(tmp_path, S) == expected


# Secrets that trials get as files.

FILED: Final = '{"user": "mé",\r\n "key": "pl4nted"}\n\n'
"""What a file is to hold, to the letter."""

READER: Final = """
import hashlib, json, os, sys, time
from pathlib import Path
from rung import core

def digest(data):
    return hashlib.sha256(data).hexdigest()

hold, seen = map(Path, sys.argv[1:])
with core.init() as context:
    folder = Path(os.environ["RUNG_SECRETS"])
    found = {
        "folder": str(folder),
        "modes": {str(it.relative_to(folder.parent)): it.stat().st_mode for it in
                  (folder, *sorted(folder.iterdir()))},
        "users": sorted({it.stat().st_uid for it in (folder, *folder.iterdir())}),
        "user": os.geteuid(),
        "files": {it.name: digest(it.read_bytes()) for it in folder.iterdir()},
        "variable": digest(os.environ["KAGGLE"].encode()),
    }
    seen.with_suffix(".new").write_text(json.dumps(found))
    seen.with_suffix(".new").rename(seen)
    while hold.exists():
        time.sleep(0.02)
    context.train.report_validation_metrics(1, {"loss": 0.5})
"""


class Reader(NamedTuple):
    """A trial that reads its secret files, and runs on."""

    installation: Installation
    isolation: str
    """Of the installation's trials."""
    experiment: str
    seen: dict[str, Any]
    """What it read; values as digests."""
    hold: Path
    """The trial runs while it exists."""

    @property
    def folder(self) -> Path:
        """The folder of its files, as it sees that."""
        return Path(self.seen["folder"])


@pytest.fixture(params=["namespaces", "off"])
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reader]:
    """Return a trial that has read its files, in each isolation that `rung up` has."""
    installation = Installation(tmp_path / "data")
    slots = ("--port", "0", "--slots", "2")
    installation.rung("up", "--detach", *slots, "--isolation", request.param)
    try:
        yield _reader(installation, request.param, tmp_path)
    finally:
        installation.down()


def _reader(installation: Installation, isolation: str, folder: Path) -> Reader:
    gateway = Gateway(*installation.server)
    _set(gateway, "kaggle", FILED, [])
    code, hold, seen = folder / "code", folder / "hold", folder / "seen.json"
    code.mkdir()
    (code / "train.py").write_text(READER)
    hold.touch()
    config = {
        "name": "reader",
        "entrypoint": f"python3 train.py {hold} {seen}",
        "max_restarts": 0,
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
        "secrets": {
            "environment": {"KAGGLE": "kaggle"},
            "files": {"kaggle.json": "kaggle", "again": "kaggle"},
        },
    }
    experiment = installation.submit(config, code)
    wait_for(seen.exists, "the trial has read its files")
    return Reader(installation, isolation, experiment, json.loads(seen.read_text()), hold)


@pytest.mark.e2e
def test_a_trial_reads_its_secret_files(reader: Reader) -> None:
    """The value to the letter, in memory, for the trial's user alone; a variable has it, too."""
    seen, name = reader.seen, reader.folder.name
    digest = hashlib.sha256(FILED.encode()).hexdigest()
    assert seen["files"] == {"kaggle.json": digest, "again": digest}
    assert seen["variable"] == digest
    assert reader.folder.parent == SHARED_MEMORY
    modes = {path: (stat.S_IFMT(mode), stat.S_IMODE(mode)) for path, mode in seen["modes"].items()}
    assert modes == {
        name: (stat.S_IFDIR, 0o700),
        f"{name}/again": (stat.S_IFREG, 0o600),
        f"{name}/kaggle.json": (stat.S_IFREG, 0o600),
    }
    assert seen["users"] == [seen["user"]]


@pytest.mark.e2e
@pytest.mark.parametrize("end", ["completes", "is killed", "dies", "loses its agent"])
def test_secret_files_go_with_the_run(reader: Reader, end: str) -> None:
    """However it ends, no file is left in memory, nor one of its text in the data folder."""
    installation = reader.installation
    ends: dict[str, Callable[[], object]] = {
        "completes": reader.hold.unlink,
        "is killed": lambda: installation.rung("kill", reader.experiment),
        "dies": lambda: _kill_trials(installation),
        "loses its agent": installation.kill_agent,
    }
    assert reader.folder.exists() == (reader.isolation == "off")  # else in memory of its own
    ends[end]()
    reader.hold.unlink(missing_ok=True)
    installation.ended(reader.experiment)
    wait_for(lambda: not reader.folder.exists(), "the files are gone")
    assert _holding(installation.folder, {"filed": "pl4nted"}) == []


def _kill_trials(installation: Installation) -> None:
    trials = installation.trials()
    assert trials
    for process in trials:
        process.kill()


SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where the documents say that they lie


class Gateway(NamedTuple):
    """The gateway, as who has a token asks it."""

    url: str
    token: str

    def ask(
        self,
        path: str,
        body: str | dict[str, Any] | None = None,
        *,
        kind: str = "POST",
        key: str = "",
    ) -> Answer:
        """Send a request with an experiment file or a document, and return the answer."""
        return asyncio.run(self._asked(path, body, kind, key))

    async def _asked(
        self, path: str, body: str | dict[str, Any] | None, kind: str, key: str
    ) -> Answer:
        headers = {"Authorization": f"Bearer {self.token}"}
        headers |= {"Idempotency-Key": key} if key else {}
        sent: dict[str, Any] = {}
        if isinstance(body, dict):
            sent = {"json": body}
        elif body is not None and path == "/experiments":
            sent = {"data": aiohttp.FormData()}
            sent["data"].add_field("config", body, filename="config.yaml")
        elif body is not None:
            sent = {"data": body}
            headers["Content-Type"] = "application/yaml"
        url = f"{self.url}/api/v1{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(kind, url, headers=headers, **sent) as answer,
        ):
            return Answer(answer.status, await answer.read())


def _holding(folder: Path, secrets: dict[str, str]) -> list[tuple[str, list[str]]]:
    """Return the files below a folder that hold secrets, packed or not, and which."""
    files = files_below(folder)
    assert files
    found = []
    for path in files:
        with contextlib.suppress(FileNotFoundError):  # gone meanwhile
            found.append((str(path.relative_to(folder)), _secrets_in(_unpacked(path), secrets)))
    return [(path, kinds) for path, kinds in found if kinds]


def _unpacked(path: Path) -> bytes:
    """Return what a file holds: a segment or a code archive as what is packed in it."""
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


_DUMP: Final = """
import sys
from chdb.session import Session
session = Session(sys.argv[1])
for name in str(session.query("SHOW TABLES FROM default", "TSVRaw")).split():
    print(session.query(f"SELECT * FROM default.{name}", "TSVRaw"))
"""


def _series(folder: Path) -> bytes:
    """Return all rows of the series, whose columns are packed."""
    dump = [sys.executable, "-c", _DUMP, str(folder)]
    return subprocess.run(dump, check=True, capture_output=True, timeout=60).stdout


def _secrets_in(data: bytes, secrets: dict[str, str]) -> list[str]:
    """Return the kinds of the secrets that are in these bytes."""
    return [
        kind
        for kind, secret in secrets.items()
        if secret.encode() in data or json.dumps(secret)[1:-1].encode() in data
    ]
