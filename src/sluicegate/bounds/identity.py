"""Of statements about who a client is."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ADDRESS_CHARS_MAX",
    "CLAIM_NAME_CHARS_MAX",
    "FORWARDED_BYTES_MAX",
    "FORWARDED_HOPS_MAX",
    "FORWARDED_MEMO_BYTES_MAX",
    "HEADER_NAMES_MEMO_MAX",
    "HEADER_NAME_CHARS_MAX",
    "IDENTITY_BYTES_MAX",
    "IDENTITY_MEMO_MAX",
    "IP_MEMO_MAX",
    "JWKS_BYTES_MAX",
    "JWKS_KEYS_MAX",
    "JWT_LEEWAY_S_MAX",
    "KEYS_FILE_BYTES_MAX",
    "PARSED_ADDRESSES_MAX",
    "TOKENS_MEMO_MAX",
    "TOKEN_BYTES_MAX",
]

# The longest address text that is looked at. A bracketed IPv6 address with a zone id and a port needs 65 characters
# with the interface names Linux allows (15); the rest is room for longer zone names elsewhere.
ADDRESS_CHARS_MAX: Final = 128

# Addresses remembered per memo (canonical key, membership in a network list). 16,384 entries take about 3 MB, and
# emptying a full memo pauses one request by less than a millisecond.
IP_MEMO_MAX: Final = 16_384

# Addresses whose parsed form is remembered. A new address is asked about by several memos one after the other, so few are enough
# for it to be parsed once.
PARSED_ADDRESSES_MAX: Final = 64

# The longest identity value (a user id, a tenant, a tier). Opaque ids and mail addresses (254 characters) fit; whatever
# is longer is no id and would only inflate keys and memory.
IDENTITY_BYTES_MAX: Final = 256

# Identity values remembered in decoded form, per header: at most 10 MB of the longest values, 2 MB of usual ones.
IDENTITY_MEMO_MAX: Final = 16_384

# Characters of a header name in a rule file, and header spellings remembered per resolver. Real requests use a few
# dozen names in two or three spellings; the memo is emptied when somebody invents more.
HEADER_NAME_CHARS_MAX: Final = 128
HEADER_NAMES_MEMO_MAX: Final = 1_024

# The part of a forwarding header that is looked at, counted from its right end, and the trusted hops that are followed in
# it. Chains of real deployments have fewer than ten hops of at most 60 bytes.
FORWARDED_BYTES_MAX: Final = 4_096
FORWARDED_HOPS_MAX: Final = 32

# Forwarding headers up to this length are remembered: 16,384 of them (IP_MEMO_MAX) then take at most about 6 MB.
FORWARDED_MEMO_BYTES_MAX: Final = 256

# Bytes of a keys file; at about 90 bytes a key, 180,000 keys. More belong into the tokens of an identity provider.
KEYS_FILE_BYTES_MAX: Final = 16 * 1024 * 1024

# Bytes and keys of a JSON Web Key Set. Providers publish two to ten keys; a set is parsed while it is loaded only.
JWKS_BYTES_MAX: Final = 1024 * 1024
JWKS_KEYS_MAX: Final = 100

# Bytes of a token. Servers limit a header line to 8 KiB, so a longer token would not reach a backend either.
TOKEN_BYTES_MAX: Final = 8_192

# Verified tokens, and tokens with a bad signature, remembered per verifier; each generation of the memo holds this many.
# A verified entry takes about 400 bytes, so both generations stay below 7 MB.
TOKENS_MEMO_MAX: Final = 8_192

# Seconds by which an issuer's clock may differ from ours, and characters of a claim's name (a URL often).
JWT_LEEWAY_S_MAX: Final = 300
CLAIM_NAME_CHARS_MAX: Final = 256
