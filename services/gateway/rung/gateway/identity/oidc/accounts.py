"""Accounts: the users and groups of the directory that an identity provider's people are.

Somebody is recognised by issuer and subject alone, which are never given to another person there;
a name or an address would let whoever gets it take over somebody's account. Who signs in for the
first time gets the user whom the provider provisioned under their external id; else the one that
was made for the provider under that name, if it has no external id; else a new one. In no case
somebody who has signed in before, by another subject. A local account of that name stays as it is:
then an administrator renames one of the two, or has the provider manage it.

Groups are the provider's own: a claim never puts anybody into a group that was made here.
"""

from typing import Final

import structlog

from rung.events.changes import (
    ChangeUser,
    CreateGroup,
    CreateUser,
    LinkIdentity,
    SyncMemberships,
)
from rung.gateway.directory.asking import Refused, System
from rung.gateway.directory.directory import Directory
from rung.gateway.directory.state import Group, User, user_by_external_id
from rung.gateway.identity.oidc.id_token import Claims
from rung.gateway.identity.oidc.provider import SignInRefused

_TRIES: Final = 3
"""How often a step is done anew when another replica signs the same person in."""

_log = structlog.get_logger()


async def user_of(system: System, claims: Claims) -> User:
    """Return the user that somebody at the identity provider is, made or brought up to date.

    Raises:
        SignInRefused: the user is not active, or the name is that of a local account.
    """
    directory = system.directory
    user = await _linked(system, claims)
    if not user.active:
        raise SignInRefused(f"the user {user.name} is not active here")
    if user.issuer == claims.issuer:
        await _describe(system, user, claims)
    if claims.groups is not None:
        await _sync(system, user, claims.issuer, claims.groups)
    return directory.state.users[user.id]


async def _linked(system: System, claims: Claims) -> User:
    """Return the user with an identity, whom the first sign-in makes."""
    directory = system.directory
    refused: Refused | None = None
    for _ in range(_TRIES):
        known = directory.user_by_identity(claims.issuer, claims.subject)
        if known is not None:
            return known
        try:
            user_id = await _user_for(system, claims)
            await system.change(
                LinkIdentity(user_id=user_id, issuer=claims.issuer, subject=claims.subject)
            )
        except Refused as error:
            refused = error
    raise SignInRefused(f"the directory does not take the user {claims.name!r}: {refused}")


async def _user_for(system: System, claims: Claims) -> str:
    directory = system.directory
    known = user_by_external_id(directory.state, claims.issuer, claims.external_id)
    if known is not None and not known.identities:
        return known.id  # provisioned, and never here before
    named = directory.user_by_name(claims.name)
    if known is None and named is None:
        user_id = system.draw_id()
        await system.change(
            CreateUser(
                user_id=user_id,
                name=claims.name,
                display_name=claims.display_name,
                email=claims.email,
                issuer=claims.issuer,
            )
        )
        return user_id
    free = named is not None and not named.identities and not named.external_id
    if known is None and named is not None and free and named.issuer == claims.issuer:
        return named.id  # made for the provider, and never here before
    raise SignInRefused(
        f"there is a user {claims.name} already who is somebody else; an administrator renames"
        " one of the two, or compares the external id with which it was provisioned"
    )


async def _describe(system: System, user: User, claims: Claims) -> None:
    """Have the user called as the provider calls them."""
    display_name = claims.display_name or user.display_name
    email = claims.email or user.email
    if (display_name, email) == (user.display_name, user.email):
        return
    await system.attempt(ChangeUser(user_id=user.id, display_name=display_name, email=email))


async def _sync(system: System, user: User, issuer: str, names: tuple[str, ...]) -> None:
    """Have the user be in these groups of the provider, and in no others of it."""
    wanted = []
    for name in names:
        group = await _group(system, issuer, name)
        if group is not None:
            wanted.append(group.id)
    groups = system.directory.state.groups.values()
    now = sorted(it.id for it in groups if it.members.get(user.id) == issuer)
    wanted = sorted(set(wanted))
    if now != wanted:
        await system.change(SyncMemberships(user_id=user.id, issuer=issuer, groups=wanted))


async def _group(system: System, issuer: str, name: str) -> Group | None:
    """Return the provider's group of a name, made if there is none; None: it was made here."""
    found = group_named(system.directory, name)
    if found is None:
        await system.attempt(CreateGroup(group_id=system.draw_id(), name=name, issuer=issuer))
        found = group_named(system.directory, name)
    if found is None or found.issuer != issuer:
        _log.warning("group of the identity provider left out", group=name, issuer=issuer)
        return None
    return found


def group_named(directory: Directory, name: str) -> Group | None:
    """Return a group by its name."""
    return directory.state.groups.get(directory.id_of(Group.TABLE, name) or "")
