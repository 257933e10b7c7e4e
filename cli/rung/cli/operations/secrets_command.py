"""`rung secrets rekey`: a new master key of the encrypted secrets."""

from pathlib import Path

import click

from rung.cli.exit_code import FAILED, OK
from rung.cli.local.data_folder import check_owner, default_path
from rung.cli.output import counted, print_json, printable
from rung.events import RungError
from rung.runtime.secrets_key import secrets_key_option
from rung.secrets.master_key import FILE, MasterKey, add_key, keep_keys, key_file
from rung.secrets.secret_store import SecretStore
from rung.storage import FolderStore, ObjectStore, open_store


@click.group()
def secrets() -> None:
    """Change the key under which secrets are encrypted."""


@secrets.command()
@click.option("--data", type=click.Path(path_type=Path), help="Data folder [RUNG_DATA, ~/.rung].")
@click.option("--objects", envvar="RUNG_OBJECTS", help="Object store of a cluster, by its URL.")
@secrets_key_option
@click.option("--drop-old", is_flag=True, help="Remove former keys that nothing needs any more.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rekey(
    data: Path | None,
    objects: str | None,
    secrets_key: MasterKey | None,
    *,
    drop_old: bool,
    as_json: bool,
) -> int:
    """Encrypt all secrets under a new key, also while Rung runs.

    On one machine the new key is drawn and put in front of the others in the data folder's
    secrets.key; with --drop-old, some time later, former keys are removed. In a cluster --objects
    names the store, and RUNG_SECRETS_KEY has the new key in front. Exit code 1: some objects could
    not be read, and stay as they are.
    """
    if objects is None:
        return _on_one_machine(data, drop_old=drop_old, as_json=as_json)
    if secrets_key is None or drop_old:
        raise click.UsageError(
            "with --objects set RUNG_SECRETS_KEY, the new key in front; remove old ones there"
        )
    store = open_store(objects)
    try:
        return _rekeyed(store, secrets_key, [], as_json=as_json)
    finally:
        store.close()


def _on_one_machine(data: Path | None, *, drop_old: bool, as_json: bool) -> int:
    path = (data or default_path()).expanduser().absolute()
    check_owner(path)
    file = path / FILE
    if not file.exists():
        raise RungError(f"{path} has no {FILE}: `rung up` makes it")
    keys, store = key_file(file), FolderStore(path / "objects")
    if not drop_old:
        add_key(file)
        return _rekeyed(store, keys, [], as_json=as_json)
    needed = SecretStore(store, keys).key_ids()
    return _rekeyed(store, keys, keep_keys(file, needed.__contains__), as_json=as_json)


def _rekeyed(store: ObjectStore, key: MasterKey, removed: list[str], *, as_json: bool) -> int:
    found = SecretStore(store, key).rekey()
    if as_json:
        print_json({**found._asdict(), "removed_keys": removed})
    else:
        for line in found.failed:
            click.echo(f"Left as it is: {printable(line)}", err=True)
        click.echo(
            f"{counted(found.changed, 'object')} encrypted under the new key, {found.already:,}"
            f" were already; {counted(len(removed), 'former key')} removed"
        )
    return FAILED if found.failed else OK
