"""Masking: secrets of a run are replaced in what it prints, before that is stored anywhere."""

from collections.abc import Sequence
from typing import Final

_MASK: Final = "********"


class Masked:
    """Replaces secrets in lines that a run prints, and in what is said of its end."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        self._texts: Final = list(reversed(texts))

    def text(self, text: str) -> str:
        """Return a text without the secrets."""
        for secret in self._texts:
            if secret in text:
                text = text.replace(secret, _MASK)
        return text

    def lines(self, lines: list[str]) -> list[str]:
        """Return lines without the secrets; the same list if there are none."""
        return [self.text(line) for line in lines] if self._texts else lines
