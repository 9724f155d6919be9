"""How an operation tells what it is doing."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Progress for people. Results are return values, never reports."""

    def step(self, text: str) -> None:
        """A phase begins."""

    def note(self, text: str) -> None:
        """A detail, shown with --verbose."""

    def warn(self, text: str) -> None:
        """Something that the operation goes on with, and that the user should know."""
