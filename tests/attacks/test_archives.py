"""Generated code archives: gateway and agent judge alike, and nothing leaves its folder."""

import functools
import gzip
import hashlib
import os
import random
import resource
import stat
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, ParamSpec, TypeVar

import pytest

from attacks.conftest import Attack
from gateway.conftest import EXPERIMENT_FILE, World
from rung.agent.objects.source_folder import CodeUnusable, SourceFolder
from rung.config.code_archive import InvalidCode, check_archive, unpack
from rung.config.code_folder import pack
from rung.events.trial import CODE_REFUSED
from rung.ledger import MemoryLedger
from rung.storage import FolderStore
from support.gateway.client import Client

pytestmark = pytest.mark.attacks

P = ParamSpec("P")
T = TypeVar("T")

UNPACKED_MAX: Final = 4 * 1024 * 1024
MEMBERS_MAX: Final = 400
ROUND_S_MAX: Final = 20.0
MEMORY_KIB_MAX: Final = 512 * 1024

PARTS: Final = (
    "a", "b", "c", "A", "train.py", "__pycache__", "train.cpython-311.pyc", "..", "..", ".", "",
    "\N{LATIN SMALL LETTER E WITH ACUTE}", "e\N{COMBINING ACUTE ACCENT}", "x" * 255, "x" * 256,
    "é" * 127, "é" * 128, "a\\b", "\udcff", "new\nline", "\x1b[2J", "\u202eexe", " ", "~", "-rf",
    "CON", "a:b", "*",
)  # fmt: skip
KINDS: Final = (
    tarfile.REGTYPE, tarfile.REGTYPE, tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE,
    tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE,
    tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"Z", b"V", b"M",
)  # fmt: skip
HONEST: Final = (tarfile.REGTYPE, tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE)
RECORDS: Final = {
    "path": ("a/b", "../x", "/x", "p" * 3000, "\x00", ""),
    "linkpath": ("a", "../../x", "q" * 3000),
    "size": ("0", "-1", "-512", "9" * 30, "1e9", "nan", "512"),
    "mtime": ("nan", "inf", "-1", "9" * 40, "1.5"),
    "uid": ("-1", "9" * 30, "x"),
    "uname": ("u" * 60_000, "root"),
    "hdrcharset": ("BINARY", "ISO-8859-1"),
    "comment": ("x", "y" * 70_000),
    "GNU.sparse.major": ("1", "x"),
    "GNU.sparse.minor": ("0",),
    "GNU.sparse.name": ("sparse",),
    "GNU.sparse.realsize": ("99999999999", "-1"),
    "GNU.sparse.map": ("0,1", "0,99999999999", ",,,"),
    "GNU.sparse.size": ("1", "99999999999"),
    "SCHILY.xattr.user.x": ("y",),
}


class Forge:
    """Draws archives.

    Attributes:
        chance: what is drawn from.
        honest: whether members are of the kinds that code has, which makes more of them whole.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.honest = chance.random() < 0.6

    def archive(self) -> bytes:
        """Return a tar.gz, or what claims to be one."""
        chance = self.chance
        members = [self.member() for _ in range(chance.choice([0, 1, 2, 3, 5, 8, 13, 30]))]
        if chance.random() < 0.02:
            members += [self.header(tarfile.TarInfo(f"{n}/m")) for n in range(MEMBERS_MAX)]
        plain = b"".join(members) + (bytes(1024) if chance.random() < 0.9 else b"")
        if not self.honest:
            plain = self.damaged(plain)
        data = gzip.compress(plain, 1)
        if chance.random() < 0.05:
            data += chance.choice([data, b"trailing", bytes(100)])
        if not self.honest and chance.random() < 0.1:
            data = self.damaged(data)
        if chance.random() < 0.02:
            data = gzip.compress(bytes(2 * UNPACKED_MAX), 9)
        return data

    def member(self) -> bytes:
        """Return one member: headers and content."""
        chance = self.chance
        info = tarfile.TarInfo(self.name())
        info.type = chance.choice(HONEST if self.honest else KINDS)
        info.mode = chance.choice([0o644, 0o755, 0o7777, 0, 0o4755, 0o1777])
        info.uid, info.mtime = chance.choice([0, 99]), chance.choice([0, 2**31])
        content = b""
        if info.type in {tarfile.SYMTYPE, tarfile.LNKTYPE}:
            info.linkname = self.name()
        elif info.type == tarfile.REGTYPE:
            content = chance.randbytes(chance.choice([0, 1, 511, 512, 513, 5000]))
        if chance.random() < 0.02:
            content = bytes(UNPACKED_MAX // 4)
        info.size = len(content)
        if not self.honest and chance.random() < 0.1:
            info.size = chance.choice([0, 1, 10**6, 10**10, 8**11 - 1])
        head = b""
        if not self.honest and chance.random() < 0.2:
            head = self.pax()
            head *= chance.choice([1, 2, 500]) if len(head) <= 2048 else 1
        return head + self.header(info) + content + bytes(-len(content) % 512)

    def name(self) -> str:
        """Return a path."""
        chance = self.chance
        if chance.random() < 0.02:
            return "/".join(["d"] * chance.choice([99, 100, 101, 300, 511, 600]))
        parts = PARTS[:7] if self.honest or chance.random() < 0.7 else PARTS
        path = "/".join(chance.choice(parts) for _ in range(chance.choice([1, 1, 2, 3, 6])))
        if chance.random() < 0.3:
            path = "../" * chance.choice([1, 2, 3]) + path
        return path if self.honest or chance.random() < 0.95 else f"/{path}"

    def header(self, info: tarfile.TarInfo) -> bytes:
        """Return a member's headers, in one of tar's formats."""
        formats: list[Literal[0, 1, 2]] = [
            tarfile.USTAR_FORMAT,
            tarfile.GNU_FORMAT,
            tarfile.PAX_FORMAT,
        ]
        self.chance.shuffle(formats)
        for kind in formats:
            try:
                return info.tobuf(kind, "utf-8", "surrogateescape")
            except (ValueError, UnicodeError):
                continue
        return b""

    def pax(self) -> bytes:
        """Return an extended header, of one member or of all that follow."""
        chance = self.chance
        records = b""
        for name in chance.sample(sorted(RECORDS), chance.choice([1, 1, 2, 4])):
            body = f" {name}={chance.choice(RECORDS[name])}\n".encode()
            length = len(body) + 1
            while len(str(length)) + len(body) != length:
                length = len(str(length)) + len(body)
            records += str(length).encode() + body
        if chance.random() < 0.1:
            records = self.damaged(records)
        info = tarfile.TarInfo("pax")
        info.type = chance.choice([tarfile.XHDTYPE, tarfile.XHDTYPE, tarfile.XGLTYPE])
        if chance.random() < 0.1:
            info.type = chance.choice([tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
        info.size = len(records)
        return info.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512)

    def damaged(self, data: bytes) -> bytes:
        """Return data with some of it cut, repeated or changed; or as they are."""
        chance = self.chance
        for _ in range(chance.choice([0, 0, 1, 3])):
            if not data:
                break
            at, to = sorted((chance.randrange(len(data)), chance.randrange(len(data))))
            piece = data[at:to]
            match chance.randrange(4):
                case 0:
                    data = data[:at]
                case 1:
                    data = data[:at] + piece[:2048] + data[at:]
                case 2:
                    data = data[:at] + data[to:]
                case _:
                    changed = bytes([data[at] ^ (1 << chance.randrange(8))])
                    data = data[:at] + changed + data[at + 1 :]
        return data


def judged(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> tuple[str, T | None]:
    """Return why something was refused, in words that can be shown, empty if it was not."""
    try:
        return "", work(*args, **options)
    except InvalidCode as error:
        reason = str(error)
    assert reason
    assert reason.isprintable(), repr(reason)
    assert len(reason) < 2000
    return reason, None


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return what lies below a folder: kind and mode of each, and its content or target."""
    found: dict[str, tuple[int, bytes]] = {}
    for here, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(here, name)
            mode = path.lstat().st_mode
            content = b""
            if stat.S_ISLNK(mode):
                content = os.fsencode(path.readlink())
                assert path.resolve(strict=False).is_relative_to(folder), path
            elif stat.S_ISREG(mode):
                content = path.read_bytes()
                assert path.lstat().st_nlink == 1
            else:
                assert stat.S_ISDIR(mode), path
            assert not mode & (stat.S_ISUID | stat.S_ISGID), path
            found[str(path.relative_to(folder))] = (stat.S_IFMT(mode) | mode & 0o100, content)
    return found


def test_gateway_and_agent_judge_alike(attack: Attack, tmp_path: Path) -> None:
    """What one accepts the other unpacks, to the same files, within its folder; in bounds."""
    check = functools.partial(check_archive, max_unpacked=UNPACKED_MAX, max_members=MEMBERS_MAX)
    write = functools.partial(unpack, max_unpacked=UNPACKED_MAX, max_members=MEMBERS_MAX)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    accepted = refused = 0
    for number, chance in enumerate(attack.rounds(0.5, least=50)):
        data = Forge(chance).archive()
        began = time.monotonic()
        jail = (tmp_path / str(number)).resolve()
        sent, stored = jail / "sent", jail / "stored"
        for folder in (sent, stored):
            folder.mkdir(parents=True)
        (jail / "archive").write_bytes(data)
        reason, taken = judged(check, data)
        assert judged(write, jail / "archive", sent)[0] == reason
        if taken is not None:
            assert check(taken.data) == taken
            (jail / "archive").write_bytes(taken.data)
            assert judged(write, jail / "archive", stored) == ("", None)
            assert tree(sent) == tree(stored)
            accepted += 1
        else:
            assert not any(sent.iterdir())
            refused += 1
        assert {path.name for path in jail.iterdir()} == {"archive", "sent", "stored"}
        assert time.monotonic() - began < ROUND_S_MAX
    assert accepted
    assert refused
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KIB_MAX
    assert not {path.name for path in tmp_path.parent.iterdir()} & {"x", "a", "b"}


def test_agents_prepare_what_they_unpack(attack: Attack, tmp_path: Path) -> None:
    """A run gets its folder, or a refusal that is not tried again; nothing else happens."""
    store = FolderStore(tmp_path / "objects")
    sources = SourceFolder(tmp_path / "agent", store)
    sources.open()
    for number, chance in enumerate(attack.rounds(0.2, least=10)):
        data = Forge(chance).archive()
        digest = hashlib.sha256(data).hexdigest()
        store.put_bytes(f"code/{digest}.tar.gz", data)
        if judged(check_archive, data)[0]:
            with pytest.raises(CodeUnusable) as refused:
                sources.prepare(str(number), digest)
            assert refused.value.fault == CODE_REFUSED
            continue
        folder = sources.prepare(str(number), digest).folder
        tree(folder)
        sources.discard(str(number))
        assert not folder.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"objects", "agent"}


def test_what_is_packed_is_accepted(attack: Attack, tmp_path: Path) -> None:
    """The command line sends what the gateway takes, or names what it cannot send."""
    for number, chance in enumerate(attack.rounds(0.1, least=10)):
        folder = tmp_path / str(number)
        folder.mkdir()
        forge = Forge(chance)
        for _ in range(chance.randrange(12)):
            path = folder / forge.name().replace("../", "").lstrip("/")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                match chance.randrange(8):
                    case 0:
                        path.symlink_to(forge.name())
                    case 1:
                        os.mkfifo(path)
                    case 2:
                        path.mkdir()
                    case _:
                        with path.open("xb") as file:  # a pipe of that name would wait
                            file.write(chance.randbytes(100))
            except (OSError, ValueError):
                continue
        _, packed = judged(pack, folder)
        if packed is not None:
            assert check_archive(packed.data) == packed


async def test_the_gateway_answers_with_a_problem(attack: Attack, tmp_path: Path) -> None:
    """Every archive is taken or refused in words, never with a fault of the server's own."""
    world = World(MemoryLedger(), FolderStore(tmp_path / "objects"))
    async with world.gateway() as client:
        for chance in attack.rounds(0.2, least=10):
            await _submit(client, Forge(chance).archive())


async def _submit(client: Client, data: bytes) -> None:
    reason, _ = judged(check_archive, data)
    answer = await client.submit(EXPERIMENT_FILE, code=data)
    if reason:
        assert (answer.status, answer.kind) == (422, "invalid-code"), answer
        assert answer.json["errors"][0]["message"] == reason
    else:
        # The code need not hold the script that the file runs.
        assert answer.status == 201 or answer.kind == "invalid-experiment", answer
