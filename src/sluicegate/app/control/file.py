"""A file that owns the rules of a service: each accepted edit is a version, a bad one is told and changes nothing."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from sluicegate.app import logs
from sluicegate.app.control.complaint import Complaint, problems_of
from sluicegate.app.control.copy import COPY_POLL_S
from sluicegate.app.control.taken import digest_of, note
from sluicegate.bounds import RULES_BYTES_MAX
from sluicegate.control.errors import ControlError, Invalid
from sluicegate.control.service import RulesService
from sluicegate.errors import ConfigurationError
from sluicegate.rules.identity.files import read_file
from sluicegate.rules.problems import RulesInvalid

__all__ = ["OwningFile"]


class OwningFile:
    """The file, watched by polls; content that two polls in a row saw is taken.

    Half a rules file can be a valid one with fewer rules; so a file that is being written is looked at again before it is believed.
    """

    def __init__(self, path: Path, data: Path, service: RulesService) -> None:
        self._path = path
        self._data = data
        self._service = service
        self._judged = ""
        self._pending = ""
        self._complaint = Complaint(service)

    async def take(self) -> None:
        """Make the service's rules those of the file, now. Raises ConfigurationError, RulesInvalid for bad rules."""
        content = await asyncio.to_thread(self._read)
        try:
            await self._service.take_file(content, self._path.name)
        except Invalid as error:
            raise RulesInvalid(str(self._path), error.problems) from error
        except ControlError as error:
            raise ConfigurationError(f"--rules: {error}") from error
        self._service.own_by_file(str(self._path.absolute()))
        self._judged = digest_of(content)
        await asyncio.to_thread(note, self._data, content)

    async def keep_watching(self) -> None:
        """Poll for as long as the process lives."""
        while True:
            await asyncio.sleep(COPY_POLL_S)
            try:
                await self._poll()
            except ConfigurationError as error:
                self._complaint.failed(str(error))
            except ControlError as error:
                # The database is away: the content counts as unseen, so that the next poll tries again.
                self._judged = ""
                self._complaint.failed(str(error))
            except Exception as error:  # noqa: BLE001
                # A fault of ours with one content must not end the watch: the next edit may well be taken.
                self._complaint.refused(f"internal error: {error!r}")

    async def _poll(self) -> None:
        content = await asyncio.to_thread(self._read)
        digest = digest_of(content)
        if digest == self._judged:
            self._pending = ""
            self._complaint.looked()
            return
        if digest != self._pending:
            self._pending = digest
            return
        self._pending, self._judged = "", digest
        try:
            applied = await self._service.take_file(content, self._path.name)
        except Invalid as error:
            self._complaint.refused(problems_of(error))
            return
        self._complaint.accepted()
        await asyncio.to_thread(note, self._data, content)
        logs.event(logging.INFO, "rules_accepted", version=applied.version.info.version, changed=applied.changed)

    def _read(self) -> bytes:
        return read_file(self._path, RULES_BYTES_MAX, "rules file")
