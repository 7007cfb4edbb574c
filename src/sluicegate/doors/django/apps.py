"""The application for ``INSTALLED_APPS``: it has no models, only the system check."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["SluicegateConfig"]


class SluicegateConfig(AppConfig):  # type: ignore[misc]
    """Named after the product; a label of its own, because the last part of the path is no name for it."""

    name = "sluicegate.doors.django"
    label = "sluicegate"
    verbose_name = "sluicegate"
