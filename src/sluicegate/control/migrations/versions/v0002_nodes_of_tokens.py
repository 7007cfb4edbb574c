"""Tokens that only one node may report with."""

from __future__ import annotations

from alembic import op

__all__ = ["upgrade"]

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """NULL: any node, as before."""
    collation = ' COLLATE "C"' if op.get_bind().dialect.name == "postgresql" else ""
    op.execute(f"ALTER TABLE tokens ADD COLUMN node TEXT{collation}")
