"""What is to be said of a rules file that a service watches: in the log once, and to the nodes for as long as it holds."""

from __future__ import annotations

import logging

from sluicegate.app import logs
from sluicegate.bounds import REPORT_ERROR_CHARS_MAX
from sluicegate.control.errors import Invalid
from sluicegate.control.service import RulesService

__all__ = ["Complaint", "problems_of"]


class Complaint:
    """``error``: why the file as it is now is not what is in service; "": it is."""

    def __init__(self, service: RulesService) -> None:
        self.error = ""
        self._service = service
        self._lasting = ""

    def refused(self, error: str) -> None:
        """The content of the file is bad; that is so until it is another."""
        self._lasting = error
        self.failed(error)

    def failed(self, error: str) -> None:
        """The file could not be looked at, or not be taken, for now."""
        if error != self.error:
            self._show(error)
            logs.event(logging.ERROR, "rules_rejected", error=error)

    def accepted(self) -> None:
        """The content is in service."""
        self._lasting = ""
        self._show("")

    def looked(self) -> None:
        """The content is the one that was judged last."""
        if self.error != self._lasting:
            self._show(self._lasting)

    def _show(self, error: str) -> None:
        self.error = error
        self._service.nodes.file_error = error[:REPORT_ERROR_CHARS_MAX]


def problems_of(error: Invalid) -> str:
    """What keeps a file from being taken, a line for each problem."""
    return "\n".join(str(each) for each in error.problems if each.severity == "error") or str(error)
