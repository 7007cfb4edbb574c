"""Who sent a request, as far as it can be verified.

An identity counts only if it is verified: a header set by a trusted peer, a known key, or a claim of a token whose
signature was checked. Everything else is absent, and a rule then falls through to the next thing it knows.
"""

from sluicegate.rules.identity.config import IdentityConfig
from sluicegate.rules.identity.parse import parse_identity, read_identity
from sluicegate.rules.identity.resolver import IdentityResolver

__all__ = ["IdentityConfig", "IdentityResolver", "parse_identity", "read_identity"]
