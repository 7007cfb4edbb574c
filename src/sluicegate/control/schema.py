"""The tables of the rules service, as queries see them. They are made, and changed, by the migrations.

All integers have 64 bits, all times are microseconds since 1970. Texts are compared by their bytes, in SQLite and in PostgreSQL alike
(collation "C"), so that pages come in the same order from both.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, MetaData, Table, Text

__all__ = [
    "audit",
    "list_entries",
    "meta",
    "metadata",
    "nodes",
    "pauses",
    "revisions",
    "rollouts",
    "subjects",
    "tokens",
    "versions",
]

metadata = MetaData()


def _table(name: str, key: str, columns: str) -> Table:
    """A table of the named columns: ``*`` after a name: it may be NULL; ``#`` before it: a number, else text."""
    keys = key.split()
    made = []
    for word in columns.split():
        plain = word.strip("#*")
        kind = BigInteger() if word.startswith("#") else Text().with_variant(Text(collation="C"), "postgresql")
        made.append(Column(plain, kind, primary_key=plain in keys, nullable=word.endswith("*"), autoincrement=False))
    return Table(name, metadata, *made)


meta = _table("meta", "key", "key value")
revisions = _table("revisions", "name", "name #value")
versions = _table(
    "versions",
    "version",
    "#version #created_us actor auth source_ip request_id action reason digest document rule_versions summary managed_by",
)
list_entries = _table(
    "list_entries",
    "list kind value",
    "list kind value #expires_us* source reason #created_us actor #revision #deleted",
)
subjects = _table(
    "subjects",
    "subject",
    "subject tier* #factor_numerator #factor_denominator #until_us* rules note #revision #deleted",
)
pauses = _table("pauses", "id", "#id rule* #until_us* reason actor #created_us #ended_us*")
rollouts = _table(
    "rollouts",
    "id",
    "#id kind #base_version candidate digest salt #basis_points #before_basis_points nodes steps guard state #created_us #updated_us "
    "actor reason report",
)
tokens = _table(
    "tokens", "id", "#id name hash role namespaces* #created_us #expires_us* #revoked_us* #last_used_us* node*"
)
audit = _table(
    "audit",
    "id",
    "#id #at_us actor auth source_ip request_id action resource outcome reason #before_version* #after_version* "
    "diff previous_hash hash",
)
nodes = _table("nodes", "node", "node #last_seen_us report")
