"""Page tokens: what a client hands back to read on."""

from __future__ import annotations

import base64

import pytest

from sluicegate.control.errors import Invalid
from sluicegate.control.paging import read_token, write_token


def test_a_token_comes_back_as_its_key() -> None:
    """A token holds its key, whatever is in it; none is the beginning."""
    key = ["user", 'ä"|', 2**63 - 1]
    assert read_token(write_token("things", *key), "things", str, str, int) == key
    assert read_token("", "things", str) is None


def test_a_token_is_of_one_collection() -> None:
    """A token of another collection with keys of the same kind is refused, and so is one that was changed in any character."""
    token = write_token("audit", 17)
    with pytest.raises(Invalid, match="page_token"):
        read_token(token, "versions", int)
    for place in range(len(token) - 1):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        with pytest.raises(Invalid):
            read_token(changed, "audit", int)
    bare = base64.urlsafe_b64encode(b"[17]").decode().rstrip("=")
    with pytest.raises(Invalid):
        read_token(bare, "audit", int)


async def test_collections_of_a_service_do_not_mix(service, editor, admin) -> None:
    """The token of a page of one collection is refused by every other, of both lists too."""
    for user in ("a", "b"):
        await service.lists.put(editor, "block", "user", user)
        await service.tokens.create(admin, user, "viewer")
    block = (await service.lists.page("block", page_size=1)).next_token
    tokens = (await service.tokens.page(admin, page_size=1)).next_token
    assert (await service.lists.page("block", page_size=1, page_token=block)).items[0].value == "b"
    with pytest.raises(Invalid):
        await service.lists.page("allow", page_size=1, page_token=block)
    for page in (service.audit.page, service.tokens.page):
        with pytest.raises(Invalid):
            await page(admin, page_size=1, page_token=block)
    with pytest.raises(Invalid):
        await service.audit.page(admin, page_size=1, page_token=tokens)
