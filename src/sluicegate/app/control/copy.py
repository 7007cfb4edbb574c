"""A rules file that follows the database, and the other way round: an edit of the file is a version, and a version made otherwise is written to it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from sluicegate.app import logs
from sluicegate.app.control.complaint import Complaint, problems_of
from sluicegate.app.control.taken import digest_of, edited_since, note, replace_file
from sluicegate.bounds import RULES_BYTES_MAX
from sluicegate.control.errors import ControlError, Invalid
from sluicegate.control.service import RulesService
from sluicegate.errors import ConfigurationError
from sluicegate.rules.identity.files import read_file
from sluicegate.rules.load import check_rules
from sluicegate.rules.yaml_text import yaml_of

__all__ = ["COPY_POLL_S", "WorkingCopy"]

COPY_POLL_S = 0.1
"""Seconds between two looks. An edit counts when two looks saw the same content, and has to be in service in a second."""

_HEAD = "# Written by the rules service after a change made there. An edit of this file is a change too.\n"


class WorkingCopy:
    """``DATA/rules.yaml`` of a service whose database owns the rules. A bad edit is told and changes nothing.

    An edit that is made while a version comes from elsewhere is the later version of the two: the file is never written over what was
    not taken yet. One that was refused is kept beside it, as ``rules.yaml.rejected``.
    """

    def __init__(self, path: Path, data: Path, service: RulesService) -> None:
        self._path = path
        self._data = data
        self._service = service
        self._judged = ""
        self._pending = ""
        self._version = 0
        """The version that the file is known to say."""
        self._complaint = Complaint(service)

    async def begin(self) -> None:
        """Take what was edited while no service ran, else write what the database has. What is wrong with the file is told."""
        is_new = (await self._service.revisions()).ruleset == 0
        if is_new or await asyncio.to_thread(edited_since, self._path, self._data):
            await self._take(await asyncio.to_thread(self._read))
        else:
            self._judged = digest_of(await asyncio.to_thread(self._read))
            await self._write()

    async def keep_watching(self) -> None:
        """Look at both for as long as the process lives."""
        while True:
            await asyncio.sleep(COPY_POLL_S)
            try:
                await self._poll()
            except (ConfigurationError, ControlError, OSError) as error:
                self._complaint.failed(str(error))
            except Exception as error:  # noqa: BLE001
                # A fault of ours with one content must not end the watch: the next edit may well be taken.
                self._complaint.failed(f"internal error: {error!r}")

    async def _poll(self) -> None:
        content = await asyncio.to_thread(self._read)
        digest = digest_of(content)
        if digest == self._judged:
            self._pending = ""
            self._complaint.looked()
            if (await self._service.revisions()).ruleset != self._version:
                await self._write()
        elif digest != self._pending:
            self._pending = digest
        else:
            self._pending = ""
            await self._take(content)

    async def _take(self, content: bytes) -> None:
        try:
            applied = await self._service.take_file(content, self._path.name)
        except Invalid as error:
            self._judged = digest_of(content)
            self._complaint.refused(problems_of(error))
            return
        # Only now: where the database was away the next look tries again.
        self._judged = digest_of(content)
        self._complaint.accepted()
        self._version = applied.version.info.version
        await asyncio.to_thread(note, self._data, content)
        logs.event(logging.INFO, "rules_accepted", version=self._version, changed=applied.changed)

    async def _write(self) -> None:
        told = (await self._service.snapshot()).rules
        if told is None or told.version == self._version:
            return
        if self._version == 0 and not self._complaint.error and not await self._differs(told.digest):
            self._version = told.version
            return
        content = (_HEAD + yaml_of(told.document)).encode()
        before = await asyncio.to_thread(self._read)
        if digest_of(before) != self._judged:
            # Edited this moment: that is taken first.
            return
        if self._complaint.error:
            # Somebody's work, which is nowhere else: a typing error in it must not cost it.
            kept = self._path.with_name(f"{self._path.name}.rejected")
            await asyncio.to_thread(replace_file, kept, before)
            logs.event(logging.WARNING, "rules_set_aside", file=str(self._path), kept=str(kept))
        await asyncio.to_thread(replace_file, self._path.resolve(), content)
        await asyncio.to_thread(note, self._data, content)
        self._judged, self._version = digest_of(content), told.version
        self._complaint.accepted()
        logs.event(logging.INFO, "rules_written", version=told.version, file=str(self._path))

    async def _differs(self, digest: str) -> bool:
        """Whether the file means something else than the version with this digest."""
        ruleset, _ = await asyncio.to_thread(check_rules, await asyncio.to_thread(self._read), self._path.name)
        return ruleset is None or ruleset.digest != digest

    def _read(self) -> bytes:
        return read_file(self._path, RULES_BYTES_MAX, "rules file")
