"""Keys: the only file that makes them.

A counter's key is ``counter_prefix(...) + subject``.

    prefix    default:login:sliding_window:60000000/6:0:
    subject   ip:203.0.113.9            one dimension
              user:8123|endpoint:POST /v1/x   several, in the order of the rule's ``per``
              *                         no dimension: one counter for everybody

The prefix names namespace, rule, algorithm, shape and generation, and no limit, rate or tier: a change of numbers keeps
the counter, a change of window starts a new one. The subject names its dimensions, so a change of ``per`` starts a new
one too, and a user never shares a counter with an API key of the same spelling.

Values come from clients, so they are escaped: ``%XX`` for every byte outside a set that holds neither ``|`` (joins
parts), ``#`` (marks a digest), ``{`` and ``}`` (a Redis hash tag) nor control characters. Different lists of parts
therefore give different subjects, and a subject put in braces is the whole hash tag. A value whose escaped text is
longer than ``SUBJECT_CHARS_MAX`` is replaced by ``#`` and its SHA-256, so a key has a bounded length; two such values
share a counter only if SHA-256 collides.

A dimension that is not known never becomes a part: the caller leaves the whole subject out (see ``OnMissing``).

In Redis the parts stand in another order, and subjects are keyed digests unless asked otherwise:

    rl1:default:{5Sall1SFxsGj0VnfDLKVxA}:login:sliding_window:60000000/6:0
    rl1:default:{5Sall1SFxsGj0VnfDLKVxA}:_zQeBAaRkY6CW-ZLAcUgBw:shorten:token_bucket:-:0

What stands in braces is the hash tag: it alone says in which slot of a cluster a key is. The tag of a subject of one part is
that part. The tag of a subject of several is its first part among ``TAG_DIMENSIONS`` (the API key, else the user, the
address, the tenant), so that all counters of one client have one slot, and one atomic step decides them; the digest of the whole
subject follows then. A subject of several parts without any of these is its own tag.

In the packed layout (``stores/redis/layout.py``) the tag is that of the client's bucket, so that the counters of one client still
have one slot:

    rl1:default:{p1/100000/4711}:login:sliding_window:60000000/6:0:1000:1764501    a hash, with a field of 8 bytes per client
    rl1:default:{p1/100000/4711}:5Sall1SFxsGj0VnfDLKVxA:search:sliding_log:60000000:0    what is no field has its own key

The leases of a window or log stand beside its counter, under its key and ``:leases``, which no generation is called. So are the
words that stand in the place of the generation of counters that serve another one (``beside_prefix``), in its slot.

A part of a counter that is split has its number behind the hash tag's part of the subject, after ``#``: ``user:8123#5``. No escaped value has that
there, so no client is called like a part of another, and each part has a slot of its own.

Rule, algorithm, shape and generation hold no colon, so the last four fields are theirs and what stands before is the subject's:
different counters have different keys. Digests are HMAC-SHA-256 under the store's secret, the first 16 bytes, as URL-safe
base64 without padding, which a program in any language can make (``tests/vectors/keys.json``).
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from hashlib import sha256
from hmac import digest as hmac_digest
from urllib.parse import quote_from_bytes

from sluicegate.bounds import SUBJECT_CHARS_MAX, SUBJECT_MEMO_MAX

__all__ = [
    "EVERYBODY",
    "FIELD_BYTES",
    "LEDGER_SUFFIX",
    "PART_SUFFIXES",
    "TAG_DIMENSIONS",
    "BucketSubjects",
    "PartMemo",
    "PlainSubjects",
    "SubjectDigests",
    "beside_prefix",
    "counter_key",
    "counter_prefix",
    "escape",
    "join_parts",
    "part_subject",
    "redis_frame",
    "subject_of",
    "tag_of",
]

EVERYBODY = "*"
"""The subject of a counter that all requests share."""

LEDGER_SUFFIX = ":leases"
"""What follows the key of a counter in that of its leases."""

PART_SUFFIXES = ("", ":region", ":use")
"""What follows the key of a counter that regions share in its own, in that of its region's record, and in that of its use."""

TAG_DIMENSIONS = ("api_key", "user", "ip", "tenant")
"""The dimensions that name a client, in the order in which one of them becomes the hash tag of a subject."""

FIELD_BYTES = 8
"""Of a digest in the packed layout, what is a client's field in a hash; the others choose the hash."""

_JOIN = "|"
_DIGEST_BYTES = 16
_SAFE_VALUE = "/:@=+,* "
_SAFE = re.compile(rf"[A-Za-z0-9_.~\-{_SAFE_VALUE}]{{1,{SUBJECT_CHARS_MAX}}}+", re.ASCII)


def counter_prefix(namespace: str, rule: str, algorithm: str, shape: str, generation: int = 0) -> str:
    """The static part of a counter's key. ``generation`` >= 0 sets apart counters that must start again."""
    names = (namespace, rule, algorithm, shape)
    return ":".join([*(quote_from_bytes(_encode(name), safe="#/") for name in names), str(generation), ""])


def counter_key(prefix: str, subject: str) -> str:
    """The key of one counter."""
    return prefix + subject


def escape(value: str) -> str:
    """``value`` as it stands in a subject: at most ``SUBJECT_CHARS_MAX`` safe ASCII characters.

    Injective up to SHA-256 collisions. The empty text stays empty; most callers treat it as not known.
    """
    if _SAFE.fullmatch(value):
        return value
    data = _encode(value)
    escaped = quote_from_bytes(data, safe=_SAFE_VALUE)
    return escaped if len(escaped) <= SUBJECT_CHARS_MAX else "#" + sha256(data).hexdigest()


def subject_of(parts: Iterable[tuple[str, str]]) -> str:
    """The subject of ``(dimension, value)`` parts, values as they came; ``EVERYBODY`` for none."""
    return join_parts([_dimension_prefix(name) + escape(value) for name, value in parts])


def join_parts(parts: Iterable[str]) -> str:
    """Join parts that are already escaped and named."""
    return _JOIN.join(parts) or EVERYBODY


class PartMemo(dict[str | None, str | None]):
    """The finished part (``user:8123``) of every value seen of one dimension; None and "" (not known) give None.

    With ``empty_is_known`` the empty text is a value like any other. ``memo[value]`` is the whole cost of a known value. ``canonical`` brings a
    value to its one spelling before it is escaped and may raise; what is no str raises TypeError. A full memo is emptied: the cost of a flood of new values stays one escape each.
    """

    __slots__ = ("_canonical", "_empty_is_known", "_prefix")

    def __init__(
        self, dimension: str, canonical: Callable[[str], str] | None = None, *, empty_is_known: bool = False
    ) -> None:
        self._prefix = _dimension_prefix(dimension)
        self._canonical = canonical
        self._empty_is_known = empty_is_known

    def __missing__(self, value: str | None) -> str | None:
        if value is None or (value == "" and not self._empty_is_known):
            self[value] = None
            return None
        if not isinstance(value, str):
            raise TypeError(f"a dimension must be a str, got {type(value).__name__}")
        text = value if self._canonical is None else self._canonical(value)
        part = self._prefix + escape(text)
        # A long value is not worth its memory, and whoever sends it can send another one every time.
        if len(value) <= SUBJECT_CHARS_MAX:
            if len(self) >= SUBJECT_MEMO_MAX:
                self.clear()
            self[value] = part
        return part


def _dimension_prefix(name: str) -> str:
    return quote_from_bytes(_encode(name), safe="") + ":"


def _encode(text: str) -> bytes:
    """UTF-8, with lone surrogates kept apart, so that every str has its own bytes."""
    return text.encode("utf-8", "surrogatepass")


def tag_of(subject: str) -> str:
    """The part of a subject that is its hash tag: subjects with one tag have one slot."""
    if _JOIN not in subject:
        return subject
    parts = subject.split(_JOIN)
    for name in TAG_DIMENSIONS:
        prefix = name + ":"
        for part in parts:
            if part.startswith(prefix):
                return part
    return subject


def part_subject(subject: str, number: int) -> str:
    """The subject of one part (``number`` >= 0) of a counter that is split: with a hash tag, so a slot, of its own."""
    tag = tag_of(subject)
    marked = f"{tag}#{number}"
    return marked if tag == subject else _JOIN.join([marked if part == tag else part for part in subject.split(_JOIN)])


def beside_prefix(prefix: str, algorithm: str, shape: str, word: str) -> str:
    """The prefix of a counter of another algorithm that serves the counters of ``prefix``, and those alone; ``word``: what it does."""
    namespace, rule, served, served_shape, generation, _ = prefix.split(":")
    return f"{namespace}:{rule}:{algorithm}:{shape}:{word}.{served}.{served_shape}.{generation}:"


def redis_frame(prefix: str) -> tuple[str, str]:
    """What stands before and after the subject's text (``SubjectDigests``) in the key of a Redis store, from a ``counter_prefix``."""
    namespace, rest = prefix.split(":", 1)
    return f"rl1:{namespace}:", f":{rest[:-1]}"


class SubjectDigests(dict[str, str]):
    """The text in a key of every subject seen: ``{tag}``, or ``{tag}:subject`` where the tag is a part; both as digests.

    A digest is HMAC-SHA-256 under ``secret``, cut to 16 bytes, as 22 URL-safe characters. Whoever reads the keys of a store learns
    no client's name, and without the secret cannot try names out. A full memo is emptied: a subject costs 2 microseconds to
    learn, one of several parts 4.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def __missing__(self, subject: str) -> str:
        tag = tag_of(subject)
        text = "{" + self._digest(tag) + "}"
        if tag != subject:
            text += ":" + self._digest(subject)
        if len(self) >= SUBJECT_MEMO_MAX:
            self.clear()
        self[subject] = text
        return text

    def _digest(self, text: str) -> str:
        return urlsafe_b64encode(self.digest(text)).rstrip(b"=").decode("ascii")

    def digest(self, text: str) -> bytes:
        """The digest of a subject or a part of one."""
        return hmac_digest(self._secret, _encode(text), "sha256")[:_DIGEST_BYTES]


class BucketSubjects(SubjectDigests):
    """``SubjectDigests`` of the packed layout: the tag is the bucket of the client, chosen by his digest.

    ``tag`` and a bucket's number stand in the braces. ``places``: of every subject its tag in braces and the field that is its own in the hashes
    of that tag. What all requests share has a tag of its own.
    """

    __slots__ = ("_buckets", "_tag", "places")

    def __init__(self, secret: bytes, tag: str, buckets: int) -> None:
        super().__init__(secret)
        self._tag = tag
        self._buckets = buckets
        self.places = _Places(self)

    def __missing__(self, subject: str) -> str:
        if subject == EVERYBODY:
            return super().__missing__(subject)
        text = self.bucket(subject) + ":" + self._digest(subject)
        if len(self) >= SUBJECT_MEMO_MAX:
            self.clear()
        self[subject] = text
        return text

    def bucket(self, subject: str) -> str:
        """The hash tag of a subject's counters, in braces."""
        if subject == EVERYBODY:
            return self[subject]
        number = int.from_bytes(self.digest(tag_of(subject))[FIELD_BYTES:], "little") % self._buckets
        return f"{{{self._tag}{number}}}"


class _Places(dict[str, tuple[bytes, bytes]]):
    """See ``BucketSubjects.places``."""

    __slots__ = ("_subjects",)

    def __init__(self, subjects: BucketSubjects) -> None:
        self._subjects = subjects

    def __missing__(self, subject: str) -> tuple[bytes, bytes]:
        subjects = self._subjects
        place = (subjects.bucket(subject).encode(), subjects.digest(subject)[:FIELD_BYTES])
        if len(self) >= SUBJECT_MEMO_MAX:
            self.clear()
        self[subject] = place
        return place


class PlainSubjects(dict[str, str]):
    """``SubjectDigests`` that can be read, to debug: nothing is a digest, and nothing is kept."""

    __slots__ = ()

    def __missing__(self, subject: str) -> str:
        tag = tag_of(subject)
        return "{" + tag + "}" if tag == subject else "{" + tag + "}:" + subject
