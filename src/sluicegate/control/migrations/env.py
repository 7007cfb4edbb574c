"""What Alembic runs a migration in: the connection of the caller, inside the caller's transaction."""

from __future__ import annotations

from alembic import context

from sluicegate.control.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
