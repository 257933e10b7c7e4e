"""Ledgers are archived, audited from there, and brought back: by commands."""

import asyncio
import json
from pathlib import Path

import pytest
from msgspec import structs

from cli.conftest import Rung
from rung.checkpoint_gc.archiver import archive_now
from rung.cli.local.data_folder import DataFolder, DataFolderError
from rung.cli.operations.ledger.import_command import make_configs, missing_in, objects_of
from rung.config.run_config import run_config
from rung.events import LedgerTrimmed, Payload, decision, fact, topic
from rung.events.checkpoint import CheckpointDeleted, CheckpointRetired, CheckpointStored
from rung.events.docs.asyncapi import example_of
from rung.events.experiment import ExperimentEnded, ExperimentRetired
from rung.ledger import Draft, Ledger, MemoryLedger, SqliteLedger
from rung.ledger.archive import ArchiveLedger, ArchiveSettings
from rung.ledger.export.export import Undone
from rung.ledger.export.format import TOPICS, VERSION_UNSEALED
from rung.storage import FolderStore
from support.ledger.history import exported, simulated
from support.ledger.tamper import flip, rewrite_all, segments_of, worsen


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a data folder that holds the ledger of a simulated search, and is the one meant."""
    for name in ("RUNG_URL", "RUNG_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "data"
    monkeypatch.setenv("RUNG_DATA", str(folder))

    async def fill() -> None:
        source = await simulated()
        ledger = await SqliteLedger.open(folder / "ledger", partitions=1)
        for name in (*topic.TOPICS,):
            records = await source.read(name, 0, 0, 100_000)
            await ledger.append([Draft(name, record.key, record.value) for record in records])
        await ledger.close()

    asyncio.run(fill())
    return folder


@pytest.fixture
def store(data: Path, tmp_path: Path) -> FolderStore:
    """Give a store with the archive of that ledger, in small segments."""
    store = FolderStore(tmp_path / "store")

    async def fill() -> None:
        ledger = await SqliteLedger.open(data / "ledger")
        await archive_now(ledger, store, ArchiveSettings(segment_bytes=8_000))
        await ledger.close()

    asyncio.run(fill())
    return store


def the_id(store: FolderStore) -> str:
    """Return the id of the ledger that is archived."""
    return store.list("archive/")[0].name.split("/")[1]


def test_archive_and_audit(data: Path, tmp_path: Path, rung: Rung) -> None:
    """What was archived once is audited without the ledger; archiving again adds nothing."""
    url = (tmp_path / "archive").as_uri()
    done = rung("ledger", "archive", "--to", url)
    assert (done.code, done.err) == (0, "")
    assert f"new segments of {url}#" in done.out
    again = rung("ledger", "archive", "--to", url, "--json").json
    assert (again["records"], again["segments"]) == (0, 0)
    for name in (url, again["archive"]):
        audited = rung("audit", "--from-archive", name, "--data", "/nonexistent")
        assert (audited.code, audited.err) == (0, "")
        assert "Every segment and every chain is whole." in audited.out
        assert "decisions are the same" in audited.out
    assert rung("audit", "simul", "--from-archive", url).code == 0
    assert rung("audit", "nothing", "--from-archive", url).code == 4
    found = rung("audit", "--from-archive", url, "--json").json
    assert found["same"]
    assert found["archive"]["problems"] == []


def test_an_archive_is_read_like_a_ledger(data: Path, store: FolderStore, rung: Rung) -> None:
    """Shown, exported and audited, it says what the ledger says."""
    for arguments in (["ledger", "show", "simul"], ["ledger", "export"], ["audit"]):
        here, there = rung(*arguments), rung(*arguments, "--ledger", store.url)
        assert (there.code, there.err) == (0, "")
        assert there.out == here.out


def test_what_was_altered_is_named(store: FolderStore, rung: Rung) -> None:
    """A damaged segment by its name; an altered decision, digests and all, by its fact."""
    altered = segments_of(store, the_id(store), topic.METRICS)[1]
    flip(store, altered, 600)
    result = rung("audit", "--from-archive", store.url)
    assert result.code == 1
    assert f"damaged: the segment {altered} is damaged" in result.out
    assert altered.name in result.out
    rewrite_all(store, segments_of(store, the_id(store), topic.SEARCHES), worsen)
    result = rung("audit", "--from-archive", store.url, "--json")
    assert result.code == 1
    assert [item["kind"] for item in result.json["archive"]["problems"]] == ["damaged"]
    assert {item["process"] for item in result.json["differences"]} == {"searcher"}
    store.delete(segments_of(store, the_id(store), topic.SEARCHES)[1].name)
    result = rung("audit", "--from-archive", store.url)
    assert result.code == 1
    assert "missing: positions" in result.out
    assert "can be read of it is decided again" in result.out


def test_since(store: FolderStore, tmp_path: Path, rung: Rung) -> None:
    """What an earlier audit saw must still be there; anything else is no such report."""
    report = tmp_path / "report.json"
    report.write_text(rung("audit", "--from-archive", store.url, "--json").out)
    since = ["audit", "--from-archive", store.url, "--since", str(report)]
    assert rung(*since).code == 0
    last = segments_of(store, the_id(store), topic.METRICS)[-1]
    store.delete(last.name)
    assert rung("audit", "--from-archive", store.url).code == 0
    result = rung(*since)
    assert result.code == 1
    assert f"missing: {last} was there and is missing" in result.out
    report.write_text("{}")
    assert "--since" in rung(*since).err
    assert "goes with --from-archive" in rung("audit", "--since", str(report)).err


def test_restore(data: Path, store: FolderStore, tmp_path: Path, rung: Rung) -> None:
    """A ledger made of an archive holds what the archive holds, and audits."""
    new = str(tmp_path / "new")
    result = rung("ledger", "import", store.url, "--data", new, "--json")
    assert result.code == 0
    assert result.json["experiments"] == ["simulate"]
    assert result.json["lost"] == 0
    assert rung("audit", "--data", new).code == 0

    async def lines(ledger: Ledger) -> list[bytes]:
        return (await exported(ledger)).splitlines()[1:-1]

    async def compare() -> None:
        restored = await SqliteLedger.open(tmp_path / "new" / "ledger")
        archived = await ArchiveLedger.open(store)
        kept = {json.loads(line)["event"]["id"] for line in await lines(archived)}
        assert kept <= {json.loads(line)["event"]["id"] for line in await lines(restored)}
        await restored.close()

    asyncio.run(compare())
    assert "is in this ledger already" in rung("ledger", "import", store.url, "--data", new).err


def test_what_the_objects_lack_is_named(store: FolderStore, tmp_path: Path, rung: Rung) -> None:
    """Code and checkpoints that are wanted still are looked for; what is there is not named.

    The configuration of the runs is made of the ledger, and so not missing.
    """
    first = tmp_path / "first"
    result = rung("ledger", "import", store.url, "--data", str(first), "--json")
    [made] = FolderStore(first / "objects").list("")
    assert made.name.startswith("configs/")
    lacking = result.json["missing_objects"]
    assert result.code == 0
    assert lacking
    assert f"{len(lacking):,} checkpoint" in result.err
    assert f"missing in {(first / 'objects').as_uri()} ({lacking[0]}" in result.err
    events = rung("ledger", "show", "--data", str(first), "--json", "simulate").out
    for name in lacking:
        assert name.split("/")[-2] in events

    second = tmp_path / "second"
    objects = FolderStore(second / "objects")
    for name in lacking[1:]:
        objects.put_bytes(name, b"x")
    result = rung("ledger", "import", store.url, "--data", str(second))
    assert "\nWarning: 1 checkpoint that" in result.err
    assert lacking[0] in result.err

    third = tmp_path / "third"
    objects = FolderStore(third / "objects")
    for name in lacking:
        objects.put_bytes(name, b"x")
    result = rung("ledger", "import", store.url, "--data", str(third), "--json")
    assert (result.err.count("Warning: "), result.json["missing_objects"]) == (1, [])
    assert "has no seals" in result.err


async def test_which_objects_are_wanted() -> None:
    """The code, and checkpoints that are not deleted, by themselves or with their experiment."""
    ledger = MemoryLedger(partitions=2)
    stored = CheckpointStored(
        experiment_id="aaaaaaaa",
        trial_id="aaaaaaaa.0",
        run=1,
        checkpoint_id="c0",
        steps_completed=1,
        size_bytes=1,
        files=1,
        digest="d",
    )
    about = {"experiment_id": "aaaaaaaa", "trial_id": "aaaaaaaa.0"}
    facts: list[Payload] = [
        structs.replace(example_of("rung.experiment.submitted.v1").data, **submitted)
        for submitted in (
            {"experiment_id": "aaaaaaaa", "code_digest": "f00", "config_digest": None},
            {"experiment_id": "bbbbbbbb", "code_digest": None, "config_digest": "ba7"},
            {
                "experiment_id": "cccccccc",
                "code_digest": None,
                "config_digest": None,
                "areas": {"cccccccc": "vision", "aaaaaaaa": "speech"},
            },
        )
    ]
    facts += [structs.replace(stored, checkpoint_id=name) for name in ("c0", "c1", "c2")]
    facts.append(CheckpointDeleted(checkpoint_id="c2", **about))
    facts += [
        structs.replace(stored, experiment_id=name, trial_id=f"{name}.0")
        for name in ("cccccccc", "dddddddd")
    ]
    events = [
        fact(data, source="/x", origin="x", sequence=number, time="t")
        for number, data in enumerate(facts, 1)
    ]
    retired = CheckpointRetired(checkpoint_id="c1", reason="r", **about)
    events.append(decision(retired, source="/x", cause=events[4], position=3, index=0))
    whole = ExperimentRetired(experiment_id="dddddddd", trials=1)
    events.append(decision(whole, source="/x", cause=events[-2], position=7, index=0))
    await ledger.append([Draft.of(event) for event in events])
    assert objects_of((await exported(ledger)).splitlines()[1:]) == [
        "areas/vision/checkpoints/cccccccc/c0/manifest.json",
        "checkpoints/aaaaaaaa/c0/manifest.json",
        "code/f00.tar.gz",
        "configs/ba7.json",
    ]


async def test_configurations_that_are_missing_are_made(tmp_path: Path) -> None:
    """They are on the ledger; what the ledger does not have stays missing."""
    store = FolderStore(tmp_path / "objects")
    found = run_config({"name": "digits", "hyperparameters": {}})
    example = example_of("rung.experiment.submitted.v1").data
    submitted = structs.replace(
        example, config={"name": "digits", "hyperparameters": {}}, config_digest=found.digest
    )
    event = fact(submitted, source="/x", origin="x", sequence=1, time="t")
    ledger = MemoryLedger()
    await ledger.append([Draft.of(event)])
    lines = (await exported(ledger)).splitlines()[1:]

    lacking = make_configs(lines, store, objects_of(lines))
    assert lacking == [f"code/{event.data.code_digest}.tar.gz"]  # type: ignore[union-attr]
    assert store.read(found.name) == found.data == b'{"name":"digits"}'


def test_checkpoints_are_looked_for_in_their_area(tmp_path: Path) -> None:
    """Those outside, or in another one, are not taken for them."""
    store = FolderStore(tmp_path / "objects")
    name = "checkpoints/e/c/manifest.json"
    wanted = [f"areas/vision/{name}", f"areas/speech/{name}", name]
    store.put_bytes(name, b"1")
    assert missing_in(store, wanted) == wanted[:2]
    store.area("vision").put_bytes(name, b"1")
    assert missing_in(store, wanted) == wanted[1:2]


def test_an_object_store_that_cannot_be_asked(
    store: FolderStore, tmp_path: Path, rung: Rung
) -> None:
    """All was imported all the same; it is said that nobody looked."""
    new = tmp_path / "new"
    new.mkdir(mode=0o700)
    (new / "objects").write_text("no folder")
    result = rung("ledger", "import", store.url, "--data", str(new), "--json")
    assert (result.code, result.json["missing_objects"]) == (0, None)
    assert "were not looked for" in result.err


def test_an_experiment_alone_must_have_ended(data: Path, tmp_path: Path, rung: Rung) -> None:
    """One whose runs nobody would end is refused with what to do; one that ended is taken."""
    export, cut, new = (tmp_path / name for name in ("x.jsonl", "cut.jsonl", "new"))
    assert rung("ledger", "export", "simul", "-o", str(export)).code == 0
    header, *lines, _ = export.read_text().splitlines()
    kept = [line for line in lines if ExperimentEnded.TYPE not in line]
    kept = [line for line in kept if json.loads(line).get("topic") in TOPICS]
    facts = json.loads(header) | {"records": len(kept), "version": VERSION_UNSEALED}
    cut.write_text("\n".join([json.dumps(facts), *kept]))

    result = rung("ledger", "import", str(cut), "--data", str(new))
    assert result.code == 6
    assert "the experiment simulate had not ended when it was exported" in result.err
    assert "`rung cancel simulate`" in result.err
    assert rung("audit", "--ledger", str(cut)).code == 0
    result = rung("ledger", "import", str(export), "--data", str(new), "--json")
    assert (result.code, result.json["experiments"]) == (0, ["simulate"])


def test_an_export_without_seals(data: Path, tmp_path: Path, rung: Rung) -> None:
    """One made into the format before seals is imported with a warning, and with a key refused."""
    export, bare, key = (tmp_path / name for name in ("x.jsonl", "bare.jsonl", "key"))
    assert rung("ledger", "export", "simul", "-o", str(export)).code == 0
    header, *lines, _ = export.read_text().splitlines()
    kept = [line for line in lines if json.loads(line).get("topic") in TOPICS]
    facts = json.loads(header) | {"records": len(kept), "version": VERSION_UNSEALED}
    bare.write_text("\n".join([json.dumps(facts), *kept]))
    key.write_text("ab" * 32)

    refused = rung("ledger", "import", str(bare), "--key", str(key), "--data", str(tmp_path / "a"))
    assert refused.code == 6
    assert "is not imported" in refused.err
    assert "a key was given" in refused.err
    taken = rung("ledger", "import", str(bare), "--data", str(tmp_path / "b"))
    assert taken.code == 0
    assert f"Warning: {bare} has no seals" in taken.err


def test_a_damaged_archive_is_not_restored(store: FolderStore, tmp_path: Path, rung: Rung) -> None:
    """It is refused with the segment's name, and nothing is written."""
    flip(store, segments_of(store, the_id(store), topic.EXPERIMENTS)[1], 600)
    result = rung("ledger", "import", store.url, "--data", str(tmp_path / "new"))
    assert result.code == 6
    assert "the segment experiments/0" in result.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["audit", "--from-archive", "STORE", "--ledger", "STORE"], "not by both", 2),
        (["audit", "--from-archive", "file:///no/where"], "there is no folder /no/where", 6),
        (["audit", "--from-archive", "ftp://x"], "known are URLs such as", 6),
        (["audit", "--from-archive", "STORE#nope"], "no archive of the ledger 'nope'", 6),
        (["ledger", "import", "kafka://localhost:1", "--data", "NEW"], "export it first", 2),
        (["ledger", "import", "STORE", "--ledger", "/srv/x"], "name a cluster, kafka://", 2),
        (["ledger", "import", "STORE", "--url", "http://localhost:1"], "into a data folder", 2),
        (["ledger", "archive", "--to", "nowhere"], "known are URLs such as", 6),
        (["ledger", "show", "--ledger", "/nonexistent"], "does not exist", 2),
        (["audit", "--since", __file__], "--since goes with --from-archive", 2),
        (["audit", "--url", "http://localhost:1"], "name the experiment to audit", 2),
    ],
)
def test_refusals(
    arguments: list[str],
    message: str,
    *,
    code: int,
    store: FolderStore,
    tmp_path: Path,
    rung: Rung,
) -> None:
    """Each says what is wrong, and what would be right."""
    given = [
        it.replace("STORE", store.url).replace("NEW", str(tmp_path / "n")) for it in arguments
    ]
    result = rung(*given)
    assert result.code == code
    assert message in result.err


def test_a_folder_in_use_is_not_imported_into(
    store: FolderStore, tmp_path: Path, rung: Rung
) -> None:
    """It says how to stop what runs there."""
    folder = DataFolder.open(tmp_path / "busy")
    result = rung("ledger", "import", store.url, "--data", str(tmp_path / "busy"))
    folder.close()
    assert result.code == 6
    assert "stop it with `rung down --data" in result.err


def test_nothing_starts_on_a_folder_that_is_imported_into(
    store: FolderStore, tmp_path: Path, rung: Rung, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first look to the last commit the import holds the folder's lock."""
    new = tmp_path / "new"
    refused: list[str] = []

    async def hand_over(_: Ledger) -> Undone:
        with pytest.raises(DataFolderError) as error:
            DataFolder.open(new)
        refused.append(str(error.value))
        second = await asyncio.to_thread(rung, "ledger", "import", store.url, "--data", str(new))
        refused.append(second.err)
        return Undone()

    monkeypatch.setattr("rung.cli.operations.ledger.import_recovery.hand_over", hand_over)
    assert rung("ledger", "import", store.url, "--data", str(new)).code == 0
    assert "another `rung up` or `rung ledger import`" in refused[0]
    assert "or another import; stop it" in refused[1]
    DataFolder.open(new).close()


def test_what_retention_took_is_in_the_archive(
    data: Path, rung: Rung, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit of a ledger that does not reach back far enough says where the rest is."""

    async def trimmed(*_: object, **__: object) -> None:
        raise LedgerTrimmed("position 0 of rung.experiments/0 is no longer there", first=7)

    monkeypatch.setattr("rung.cli.operations.components.audit", trimmed)
    result = rung("audit", "--data", str(data))
    assert result.code == 6
    assert "is no longer there" in result.err
    assert "rung audit --from-archive URL" in result.err
