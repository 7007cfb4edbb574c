"""A database that answers, and lets nobody in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy.engine import make_url

from sluicegate.clock import ManualClock
from sluicegate.control.errors import Unavailable
from sluicegate.control.service import RulesService


async def test_a_refused_login(new_database: Callable[[], str], clock: ManualClock) -> None:
    """A login that PostgreSQL refuses is told as that, and not as a database that does not answer."""
    url = make_url(new_database()).set(username="nobody_of_this_name", password="a-secret-word")
    with pytest.raises(Unavailable, match=r"^the database refuses the login: .*nobody_of_this_name") as found:
        await RulesService.open(url.render_as_string(hide_password=False), clock, watched=False)
    assert "a-secret-word" not in str(found.value)
