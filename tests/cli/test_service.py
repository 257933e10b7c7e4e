"""`rung service NAME`: what is refused before anything starts, and a life until SIGTERM."""

import asyncio
import sys
from pathlib import Path

import click
import msgspec
import pytest

from cli.conftest import Rung
from rung.cli.operations.gateway import _parts
from rung.cli.operations.service import SERVICES
from rung.cli.operations.service import service as group
from rung.events import partition_of
from rung.events.experiment import ExperimentSubmitted, PauseRequested
from rung.ledger import Draft, MemoryLedger
from rung.ledger.factory import open_ledger
from rung.runtime import FactWriter, host
from rung.runtime.checksum import without_checksum
from rung.searcher.processor import Searcher
from support.searcher.scenario import EXPERIMENT, config

pytestmark = pytest.mark.processes

KAFKA = "kafka://127.0.0.1:1"


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_there(name: str, rung: Rung) -> None:
    """Each has a help that says where its ledger is, and that several may run."""
    result = rung("service", name, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: rung service {name}")
    assert "--ledger" in result.out
    assert "kafka://" in result.out


def test_help_names_every_service(rung: Rung) -> None:
    """The list comes without importing any of them."""
    result = rung("service", "--help")
    assert result.code == 0
    for name in SERVICES:
        assert f"\n  {name} " in result.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["xyzzy"], "there is no service `xyzzy`"),
        (["searcher"], "Missing option '--ledger'"),
        (["searcher", "--ledger", KAFKA], "--objects: the snapshots of a ledger on Kafka lie in"),
        (["searcher", "--ledger", "ftp://a"], "known are a folder, sqlite:FOLDER and kafka://"),
        (["searcher", "--ledger", "x", "--snapshot-every", "0"], "snapshot_every is 0: give"),
        (["scheduler", "--ledger", "x", "--agent-timeout", "0"], "agent_timeout is 0"),
        (["checkpoint-gc", "--ledger", "x"], "Missing option '--objects'"),
        (["checkpoint-gc", "--ledger", "x", "--objects", "y"], "object store 'y': known are URLs"),
        (["gateway", "--ledger", "x", "--objects", "y"], "Missing option '--token'"),
        (
            ["gateway", "--ledger", "x", "--objects", "y", "--token", "t", "--bind", "80"],
            "--bind takes ADDRESS:PORT",
        ),
        (
            ["gateway", "--ledger", "x", "--objects", "y", "--token", "t", "--bind", "x:99999"],
            "--bind x:99999: ",
        ),
    ],
)
def test_refused(arguments: list[str], words: str, rung: Rung, tmp_path: Path) -> None:
    """What does not fit is said in a line, and nothing is left running or lying around."""
    before = sorted(tmp_path.rglob("*"))
    result = rung("service", *arguments)
    assert result.code in {2, 6}
    assert words in result.err
    assert "Traceback" not in result.err
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unknown_service_is_none() -> None:
    """Completion and help ask for names."""
    assert group.get_command(click.Context(group), "xyzzy") is None
    assert group.list_commands(click.Context(group)) == list(SERVICES)


async def test_the_gateway_audits() -> None:
    """What the gateway does not know itself, `rung service gateway` gives it."""
    ledger = MemoryLedger()
    writer = FactWriter(ledger, source="/rung/gateway", origin="gateway/1")
    settings = config("single")
    await writer.write(
        ExperimentSubmitted(experiment_id=EXPERIMENT, config=settings, source="", code_digest=None)
    )
    hosting = asyncio.create_task(host(ledger, Searcher()))
    async with asyncio.timeout(10), _parts(ledger, None) as parts:
        partition = partition_of(EXPERIMENT, ledger.partitions("searches"))
        await anext(aiter(ledger.follow("searches", partition, 0)))
        assert parts.series is None
        assert parts.audit is not None
        found = await parts.audit(EXPERIMENT)
        assert (found.same, found.decisions) == (True, 3)
    hosting.cancel()
    await asyncio.gather(hosting, return_exceptions=True)


async def test_series_that_are_none_are_refused() -> None:
    """The option is named."""
    with pytest.raises(click.UsageError, match="--series: "):
        async with _parts(MemoryLedger(), "clickhouse://"):
            raise AssertionError


async def test_a_service_ends_with_a_snapshot(tmp_path: Path) -> None:
    """At SIGTERM it saves what it folded since the last snapshot, and leaves with 0."""
    ledger = await open_ledger(tmp_path)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rung.cli", "service", "searcher", "--ledger", str(tmp_path)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        writer = FactWriter(ledger, source="/rung/gateway", origin="gateway/1")
        asked = [writer.stamp(PauseRequested(experiment_id=EXPERIMENT)) for _ in range(600)]
        await ledger.append([Draft.of(it) for it in asked])
        await writer.write(
            ExperimentSubmitted(
                experiment_id=EXPERIMENT, config=config("single"), source="", code_digest=None
            )
        )
        partition = partition_of(EXPERIMENT, ledger.partitions("searches"))
        async with asyncio.timeout(30):
            await anext(aiter(ledger.follow("searches", partition, 0)))
            process.terminate()
            assert await process.wait() == 0
        saved = await ledger.snapshot("state/searcher", partition)
        assert saved is not None
        assert msgspec.json.decode(without_checksum(saved))["facts"] == 601
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await ledger.close()
