"""The page on these commands is what they say of themselves."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_current() -> None:
    """docs/control/cli.md is what scripts/cli_page makes of the commands."""
    program = (ROOT / "scripts" / "cli_page").read_text()
    namespace: dict[str, object] = {"__name__": "cli_page", "__file__": str(ROOT / "scripts" / "cli_page")}
    exec(compile(program, "scripts/cli_page", "exec"), namespace)
    page = namespace["page"]
    assert callable(page)
    assert (ROOT / "docs" / "control" / "cli.md").read_text() == page(), "run scripts/cli_page"
