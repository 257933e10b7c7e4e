"""The records that gateway and clients share."""

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from rung import api

RECORDS = [
    record
    for name in api.__all__
    if isinstance(record := getattr(api, name), type) and issubclass(record, Struct)
]


REQUESTS = (
    api.AccountWanted,
    api.AssignmentWanted,
    api.BatchWanted,
    api.CodeSignIn,
    api.ConfigWanted,
    api.DescriptionWanted,
    api.DeviceSignIn,
    api.GroupChange,
    api.GroupWanted,
    api.LoopbackSignIn,
    api.MembersWanted,
    api.PasswordSignIn,
    api.PasswordWanted,
    api.PolicyWanted,
    api.PoolPolicy,
    api.ProjectChange,
    api.ProjectMove,
    api.ProjectWanted,
    api.ModelChange,
    api.ModelMove,
    api.ModelVersionChange,
    api.ModelVersionWanted,
    api.ModelWanted,
    api.ResourcesWanted,
    api.RetentionWanted,
    api.SavedSearchWanted,
    api.SecretWanted,
    api.TemplateWanted,
    api.TokenRotation,
    api.TokenWanted,
    api.UserChange,
    api.UserWanted,
    api.MetricThreshold,
    api.WebhookChange,
    api.WebhookWanted,
    api.WorkspaceChange,
    api.WorkspaceWanted,
)
"""What clients send: a misspelt field is refused."""


@pytest.mark.parametrize(
    "record", [it for it in RECORDS if it not in REQUESTS], ids=lambda record: record.__name__
)
def test_a_field_of_a_newer_gateway_is_ignored(record: type[Struct]) -> None:
    """No answer refuses what it does not know, so that an older client reads a newer gateway."""
    assert not record.__struct_config__.forbid_unknown_fields


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_a_record_says_what_it_is(record: type[Struct]) -> None:
    """Each has a description, which the API's document shows."""
    (_,), schemas = msgspec.json.schema_components([record])
    assert schemas[record.__name__]["description"]


def test_an_audit_lists_what_differs() -> None:
    """All differences stand in one list, each with the decider that it is of."""
    difference: dict[str, Any] = {
        "process": "searcher",
        "key": "k3v9x2ab",
        "position": 7,
        "index": 0,
        "recorded": None,
        "decided": {"type": "rung.trial.stopped.v1", "data": {}},
    }
    found = {
        "same": False,
        "decisions": 5,
        "differences": [difference],
        "verdicts": [],
        "imports": ["not complete"],
        "deleted": {"k3v9x2ab": "2026-01-31T12:00:00.000Z"},
        "seals": None,
    }
    read = msgspec.json.decode(msgspec.json.encode(found | {"new": 1}), type=api.Audit)
    assert read.differences[0].process == "searcher"
    assert msgspec.to_builtins(read) == found


def test_states_that_are_an_end() -> None:
    """An experiment in one of these will not change any more."""
    assert sorted(api.ENDED) == ["canceled", "completed", "errored"]
