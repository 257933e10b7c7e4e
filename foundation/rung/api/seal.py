"""Answers of verifying seals."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Kind = Literal["altered", "missing", "seal", "heads", "export", "unsealed"]
"""What is wrong: records differ, or are gone; a seal; the signed heads; an export as a whole;
records that neither a seal nor a signature covers."""


class SealProblem(Struct, frozen=True, kw_only=True):
    """A difference from what was sealed."""

    kind: Kind
    topic: str
    partition: int
    first: Annotated[int | None, Meta(description="position of the first record concerned")]
    last: int | None
    text: str


class Unsealed(Struct, frozen=True, kw_only=True):
    """Records behind the newest seal of a partition, which are not sealed yet."""

    topic: str
    partition: int
    first: int
    count: int
    signed: Annotated[
        bool, Meta(description="whether a signature of the export or archive covers them")
    ] = False


class SealReport(Struct, kw_only=True):
    """The result of verifying seals."""

    ledger: str
    sealed: Annotated[bool, Meta(description="whether there are seals at all")] = False
    since: Annotated[str | None, Meta(description="when the oldest seal was made")] = None
    seals: int = 0
    records: Annotated[int, Meta(description="how many are as they were sealed")] = 0
    keys: Annotated[list[str], Meta(description="the public keys that signed")] = field(
        default_factory=list[str]
    )
    compared: Annotated[
        bool, Meta(description="whether those were compared with a key that was known before")
    ] = False
    problems: list[SealProblem] = field(default_factory=list[SealProblem])
    unsealed: list[Unsealed] = field(default_factory=list[Unsealed])
    notes: list[str] = field(default_factory=list[str])

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems
