"""Errors that a user can mend: one sentence, and where there is one the next step."""

from __future__ import annotations


class TrainerError(Exception):
    """An expected error; printed without a traceback. `next` is a command or an action to try."""

    def __init__(self, message: str, *, next: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next = next

    def __str__(self) -> str:
        return f"{self.message} Next: {self.next}" if self.next else self.message
