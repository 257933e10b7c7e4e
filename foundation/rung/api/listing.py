"""Base of answers that list things."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct

_Item = TypeVar("_Item")


class Listing(Struct, Generic[_Item], kw_only=True):
    """An answer with `items`, which can be iterated over."""

    if TYPE_CHECKING:
        items: list[_Item]

    def __iter__(self) -> Iterator[_Item]:
        """Iterate over the items of this page."""
        return iter(self.items)
