"""A store in front of one that many processes share: it answers in this process what it can."""

from __future__ import annotations

from typing import Final

from sluicegate.clock import Clock
from sluicegate.stores.base import Store
from sluicegate.stores.near.front import Asking
from sluicegate.stores.near.hot import HotStore
from sluicegate.stores.near.settings import NearSettings
from sluicegate.stores.near.splits import parts_beside
from sluicegate.stores.near.store import NearStore, SharedStore

__all__ = ["NEAR", "Asking", "HotStore", "NearSettings", "NearStore", "in_front_of", "parts_beside"]

NEAR: Final = NearSettings()
"""The usual numbers."""


def in_front_of(store: Store, settings: NearSettings | None, clock: Clock) -> Store:
    """A near store in front of ``store``, or that itself: where ``settings`` is None, and where it is near already, of one process, or grants no leases."""
    if settings is None or isinstance(store, NearStore) or not isinstance(store, SharedStore):
        return store
    return NearStore(store, settings, clock)
