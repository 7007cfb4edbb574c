"""The tables of the first release, with triggers that keep the audit trail and the versions as they are."""

from __future__ import annotations

import uuid

from alembic import op
from sqlalchemy import text

__all__ = ["upgrade"]

revision = "0001"
down_revision = None

# {text}: a text compared by its bytes. {compact}: rows stand in their key's tree, where the database must be told so.
TABLES = """
CREATE TABLE meta (key {text} PRIMARY KEY, value {text} NOT NULL) {compact};
CREATE TABLE revisions (name {text} PRIMARY KEY, value BIGINT NOT NULL) {compact};
CREATE TABLE versions (
    version BIGINT PRIMARY KEY, created_us BIGINT NOT NULL, actor {text} NOT NULL, auth {text} NOT NULL, source_ip {text} NOT NULL,
    request_id {text} NOT NULL, action {text} NOT NULL, reason {text} NOT NULL, digest {text} NOT NULL, document {text} NOT NULL,
    rule_versions {text} NOT NULL, summary {text} NOT NULL, managed_by {text} NOT NULL
);
CREATE TABLE list_entries (
    list {text} NOT NULL CHECK (list IN ('allow', 'block')), kind {text} NOT NULL, value {text} NOT NULL, expires_us BIGINT,
    source {text} NOT NULL, reason {text} NOT NULL, created_us BIGINT NOT NULL, actor {text} NOT NULL, revision BIGINT NOT NULL,
    deleted BIGINT NOT NULL, PRIMARY KEY (list, kind, value)
) {compact};
CREATE INDEX list_entries_by_revision ON list_entries (revision, list, kind, value);
CREATE INDEX list_entries_by_source ON list_entries (list, source);
CREATE INDEX list_entries_by_end ON list_entries (expires_us) WHERE expires_us IS NOT NULL AND deleted = 0;
CREATE INDEX list_entries_removed ON list_entries (revision) WHERE deleted = 1;
CREATE TABLE subjects (
    subject {text} PRIMARY KEY, tier {text}, factor_numerator BIGINT NOT NULL, factor_denominator BIGINT NOT NULL, until_us BIGINT,
    rules {text} NOT NULL, note {text} NOT NULL, revision BIGINT NOT NULL, deleted BIGINT NOT NULL
) {compact};
CREATE INDEX subjects_by_revision ON subjects (revision, subject);
CREATE INDEX subjects_removed ON subjects (revision) WHERE deleted = 1;
CREATE TABLE pauses (
    id BIGINT PRIMARY KEY, rule {text}, until_us BIGINT, reason {text} NOT NULL, actor {text} NOT NULL, created_us BIGINT NOT NULL,
    ended_us BIGINT
);
CREATE INDEX pauses_that_hold ON pauses (id) WHERE ended_us IS NULL;
CREATE TABLE rollouts (
    id BIGINT PRIMARY KEY, kind {text} NOT NULL, base_version BIGINT NOT NULL, candidate {text} NOT NULL, digest {text} NOT NULL,
    salt {text} NOT NULL, basis_points BIGINT NOT NULL, before_basis_points BIGINT NOT NULL, nodes {text} NOT NULL, steps {text} NOT NULL, guard {text} NOT NULL,
    state {text} NOT NULL, created_us BIGINT NOT NULL, updated_us BIGINT NOT NULL, actor {text} NOT NULL, reason {text} NOT NULL,
    report {text} NOT NULL
);
CREATE UNIQUE INDEX rollouts_one_runs ON rollouts (state) WHERE state = 'running';
CREATE TABLE tokens (
    id BIGINT PRIMARY KEY, name {text} NOT NULL, hash {text} NOT NULL UNIQUE, role {text} NOT NULL, namespaces {text},
    created_us BIGINT NOT NULL, expires_us BIGINT, revoked_us BIGINT, last_used_us BIGINT
);
CREATE TABLE audit (
    id BIGINT PRIMARY KEY, at_us BIGINT NOT NULL, actor {text} NOT NULL, auth {text} NOT NULL, source_ip {text} NOT NULL,
    request_id {text} NOT NULL, action {text} NOT NULL, resource {text} NOT NULL, outcome {text} NOT NULL, reason {text} NOT NULL,
    before_version BIGINT, after_version BIGINT, diff {text} NOT NULL, previous_hash {text} NOT NULL, hash {text} NOT NULL
);
CREATE TABLE nodes (node {text} PRIMARY KEY, last_seen_us BIGINT NOT NULL, report {text} NOT NULL) {compact};
INSERT INTO revisions VALUES
    ('overlay', 0), ('lists', 0), ('subjects', 0), ('epoch', 0), ('lists_floor', 0), ('subjects_floor', 0);
INSERT INTO meta VALUES ('audit_head', '0:')
"""

SQLITE_TRIGGER = """
CREATE TRIGGER {table}_{what} BEFORE {what} ON {table}
BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed or removed'); END
"""

# A row that replaces another one removes it without a trigger.
SQLITE_REPLACE_TRIGGER = """
CREATE TRIGGER {table}_replace BEFORE INSERT ON {table} WHEN EXISTS (SELECT 1 FROM {table} WHERE {key} = NEW.{key})
BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed or removed'); END
"""

POSTGRESQL_FUNCTION = """
CREATE FUNCTION sluicegate_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'rows of % are never changed or removed', TG_TABLE_NAME; END $$
"""

POSTGRESQL_TRIGGER = """
CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION sluicegate_append_only()
"""


def upgrade() -> None:
    """Make everything; the database gets its incarnation."""
    postgresql = op.get_bind().dialect.name == "postgresql"
    words = {"text": 'TEXT COLLATE "C"' if postgresql else "TEXT", "compact": "" if postgresql else "WITHOUT ROWID"}
    for statement in TABLES.format(**words).split(";\n"):
        op.execute(statement)
    if postgresql:
        op.execute(POSTGRESQL_FUNCTION)
    for table, key in (("audit", "id"), ("versions", "version")):
        if postgresql:
            op.execute(POSTGRESQL_TRIGGER.format(table=table))
        else:
            op.execute(SQLITE_TRIGGER.format(table=table, what="UPDATE"))
            op.execute(SQLITE_TRIGGER.format(table=table, what="DELETE"))
            op.execute(SQLITE_REPLACE_TRIGGER.format(table=table, key=key))
    op.get_bind().execute(text("INSERT INTO meta VALUES ('incarnation', :made)"), {"made": uuid.uuid4().hex})
