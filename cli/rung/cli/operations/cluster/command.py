"""`rung cluster init`, `acls`, `status` and `upgrade`: a ledger on Kafka."""

import asyncio
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from rung.cli import exit_code
from rung.cli.connection_options import asynchronous
from rung.cli.output import print_json
from rung.events import TOPICS, RungError

if TYPE_CHECKING:
    from rung.ledger.kafka import Created, Finding, Granted

_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes"}
_SPAN: Final = re.compile(r"(\d+)([dhm])")
_EVER: Final = "ever"


class Retention(click.ParamType):
    """Takes a topic's retention time: `metrics=30d`, `heartbeats=12h`, `pools=ever`."""

    name = "topic=time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, timedelta | None]:
        """Return the topic and its time, None for ever."""
        topic, _, text = str(value).partition("=")
        if topic not in TOPICS:
            self.fail(f"there is no topic {topic!r}; there are {', '.join(TOPICS)}", param, ctx)
        if text == _EVER:
            return topic, None
        found = _SPAN.fullmatch(text)
        if found is None or not int(found[1]):
            self.fail(f"{text!r} is no time: give {topic}=30d, =12h, =90m or =ever", param, ctx)
        return topic, timedelta(**{_UNITS[found[2]]: int(found[1])})


class Principals(click.ParamType):
    """Takes a pattern of principals: `User:rung-{component}`."""

    name = "pattern"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the pattern."""
        text = str(value)
        if not text.startswith("User:") or "{component}" not in text:
            self.fail(
                f"{text!r} does not give each component a principal of its own: give a pattern "
                "such as User:rung-{component} or User:CN=rung-{component}",
                param,
                ctx,
            )
        return text


_ledger = click.option(
    "--ledger",
    "url",
    required=True,
    envvar="RUNG_LEDGER",
    help="kafka://host:9092,other:9092/prefix; RUNG_KAFKA_… say how to log in.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def cluster() -> None:
    """Make, watch and upgrade a ledger on Kafka."""


@cluster.command()
@_ledger
@click.option(
    "--partitions", type=click.IntRange(1, 10_000), help="Of each topic, for ever.  [default: 16]"
)
@click.option(
    "--replication",
    type=click.IntRange(1, 100),
    help="On how many brokers each record lies.  [default: 3, or as many as there are]",
)
@click.option(
    "--retention",
    "retentions",
    multiple=True,
    type=Retention(),
    help="How long a topic is kept.  [default: metrics=30d logs=30d heartbeats=1d, others ever]",
)
@click.option(
    "--objects", envvar="RUNG_OBJECTS", help="URL of an object store to make ready as well."
)
@click.option(
    "--acls",
    "principals",
    type=Principals(),
    envvar="RUNG_ACLS",
    help="Add the ACLs that `rung cluster acls` prints, for principals such as "
    "User:rung-{component}.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing; exit code 1 if something differs.")
@_json
@asynchronous
async def init(  # noqa: PLR0913 - a parameter for each option
    *,
    url: str,
    partitions: int | None,
    replication: int | None,
    retentions: tuple[tuple[str, timedelta | None], ...],
    objects: str | None,
    principals: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Make the topics of a ledger that are missing, and list settings that differ.

    Existing topics are never changed, and no ACL is removed. The exit code is 1 if the ledger
    cannot be used as it is, or loses what it must keep, and 3 if no broker answers.
    """
    kafka = _kafka()
    settings = kafka.KafkaSettings.from_environment()
    kept = dict(retentions)
    made = None
    if not dry_run:
        made = await kafka.create(
            url, settings, partitions=partitions, replication=replication, retention=kept
        )
    findings: list[Finding] = await kafka.check(
        url, settings, replication=replication, retention=kept
    )
    of_objects = [] if objects is None else await _prepare(objects, dry_run=dry_run)
    granted = None
    if principals is not None:
        from rung.cli.operations.cluster.acls import rules_of  # noqa: PLC0415 - imports all services

        of_components = rules_of(kafka.parse_address(url), principals)
        wanted = [rule for rules in of_components.values() for rule in rules]
        granted = await kafka.grant(url, settings, wanted, dry_run=dry_run)
    if as_json:
        found = {"ledger": made, "findings": findings, "objects": of_objects}
        print_json(found if granted is None else {**found, "acls": granted})
    else:
        _print_findings(made, findings, of_objects)
        if granted is not None:
            _print_acls(granted, dry_run=dry_run)
    if dry_run:
        differs = of_objects or findings or (granted is not None and granted != kafka.Granted())
        return exit_code.FAILED if differs else exit_code.OK
    return exit_code.FAILED if any(item.grave for item in findings) else exit_code.OK


async def _prepare(objects: str, *, dry_run: bool) -> list[str]:
    """Prepare an object store, or return what it lacks."""
    from rung.storage import inspect, open_store, prepare  # noqa: PLC0415 - not always needed

    return await asyncio.to_thread(inspect if dry_run else prepare, open_store(objects))


def _print_findings(
    made: "Created | None", findings: "list[Finding]", of_objects: list[str]
) -> None:
    if made is not None:
        click.echo(f"ledger {made.id}, {made.partitions} partitions per topic")
        click.echo(f"made: {', '.join(made.made) or 'nothing, all topics were there'}")
    for finding in findings:
        click.echo(f"{'wrong' if finding.grave else 'differs'}: {finding}")
    for line in of_objects:
        click.echo(f"objects: {line}")
    if not findings:
        click.echo("all topics are as they should be")


def _print_acls(granted: "Granted", *, dry_run: bool) -> None:
    for rule in granted.made:
        click.echo(f"ACL {'missing' if dry_run else 'added'}: {rule}")
    for text in granted.surplus:
        click.echo(f"ACL more than needed: {text}")
    if not (granted.made or granted.surplus):
        click.echo("all ACLs are as they should be")


@cluster.command()
@_ledger
@click.argument("principals", type=Principals(), default="User:rung-{component}")
@_json
def acls(*, url: str, principals: str, as_json: bool) -> None:
    """Print the ACLs that each component needs, as options of Kafka's kafka-acls.sh.

    PRINCIPALS is the pattern of their principals, User:rung-{component} if not given; a component
    is searcher, scheduler, checkpoint-gc, metrics, gateway or agent. No broker is asked:
    `rung cluster init --acls PRINCIPALS` adds what is missing.
    """
    kafka = _kafka()
    from rung.cli.operations.cluster.acls import rules_of  # noqa: PLC0415 - an extra, see `_kafka`

    found = rules_of(kafka.parse_address(url), principals)
    if as_json:
        print_json(found)
        return
    for name, rules in found.items():
        click.echo(f"# {name}")
        for rule in rules:
            click.echo(rule.command)


@cluster.command()
@_ledger
@click.option(
    "--objects",
    envvar="RUNG_OBJECTS",
    help="URL of the object store with the snapshots; without it all topics are read entirely.",
)
@_json
@asynchronous
async def status(*, url: str, objects: str | None, as_json: bool) -> int:
    """Show the status of a cluster: problems first, then everything.

    Brokers, topics and the lag of consumers; the replicas of each service and their partitions;
    agents, slots and open experiments by the ledger; open dead letters, which are a problem for an
    hour; the age of snapshots; records older than a minute that are not sealed; unfinished
    imports. Decisions that are due are looked at twice, a second apart. The exit code is 1 if
    there is a problem, 3 if no broker answers.
    """
    kafka = _kafka()
    from rung.cli.operations.cluster.status import print_status  # noqa: PLC0415 - an extra, see `_kafka`
    from rung.cli.operations.cluster.survey import survey  # noqa: PLC0415 - see above
    from rung.storage import open_store  # noqa: PLC0415 - see above

    store = open_store(objects) if objects else None
    found = await survey(url, kafka.KafkaSettings.from_environment(), store)
    if as_json:
        print_json(found)
    else:
        print_status(found)
    return exit_code.FAILED if found.problems else exit_code.OK


@cluster.command()
@_ledger
@click.option(
    "--dry-run", is_flag=True, help="Change nothing; exit code 1 if it cannot be raised."
)
@_json
@asynchronous
async def upgrade(*, url: str, dry_run: bool, as_json: bool) -> int:
    """Raise the logic level: new experiments and pools are decided as this release decides.

    An upgraded processor decides as the release before, so that both may run side by side. Once
    all replicas of searcher, scheduler, checkpoint-gc and gateway run this release, this command
    puts its logic level on record: new experiments have it, and each pool from its next submission
    on. Earlier decisions stay. It is refused while replicas run that do not know the level, and
    names them. It cannot be undone; a second time it does nothing. Exit code 1: refused.
    """
    kafka = _kafka()
    from rung.cli.operations.cluster.upgrade import upgrade as raise_level  # noqa: PLC0415 - an extra, see `_kafka`

    done = await raise_level(url, kafka.KafkaSettings.from_environment(), dry_run=dry_run)
    if as_json:
        print_json(done)
    elif done.obstacles:
        click.echo(f"the logic level stays {done.before}, and is not raised to {done.level}:")
        for line in done.obstacles:
            click.echo(f"  {line}")
    elif done.before == done.level:
        click.echo(f"the logic level is {done.level}: nothing to do")
    elif dry_run:
        click.echo(f"the logic level can be raised from {done.before} to {done.level}")
    else:
        click.echo(f"the logic level is raised from {done.before} to {done.level}")
    return exit_code.FAILED if done.obstacles else exit_code.OK


def _kafka() -> Any:
    """Import the package of the ledger on Kafka.

    Raises:
        RungError: its extra is not installed.
    """
    from rung.runtime.logs import log_plainly  # noqa: PLC0415 - only where it is needed

    log_plainly()
    try:
        from rung.ledger import kafka  # noqa: PLC0415 - an extra, not always there
    except ModuleNotFoundError as error:
        raise RungError(
            f"a ledger on Kafka needs the extra `kafka` ({error}): pip install 'rung[kafka]'"
        ) from error
    return kafka
