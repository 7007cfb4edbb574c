"""What a server prints on standard output: one line per listener once all are open, where things are, and what to try."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from sluicegate.app.settings import Settings
from sluicegate.errors import ConfigurationError
from sluicegate.rules.model import RuleSet

__all__ = ["announce", "tries"]

_LOGIN_QUOTA = re.compile(r"^(\s+quota: )(\d{1,6})/minute$", re.MULTILINE)


def announce(
    out: TextIO,
    settings: Settings,
    listeners: Sequence[tuple[str, str]],
    rules_path: Path | None,
    ruleset: RuleSet | None,
) -> None:
    """Print one line per listener (``gateway  http://127.0.0.1:8080``), then the rest; flushed, so that a pipe sees it now.

    ``rules_path``: the rules file, None where there is none; ``ruleset``: the rules in service, None where only the workers know them.
    Raises ConfigurationError where it cannot be written.
    """
    rules_path = None if rules_path is None else rules_path.absolute()
    lines = [f"{name:<8} {url}" for name, url in listeners]
    lines.append(f"{'rules':<8} {_rules(settings, rules_path, ruleset)}")
    documents = Path(__file__).resolve().parents[3] / "docs" / "README.md"
    if documents.is_file():
        lines.append(f"{'docs':<8} {documents}")
    extras = {"grpc": "envoy"}
    lines += [
        f"{name}: needs the extra {extras.get(name, name)!r} (docs/install.md), not opened"
        for name in settings.not_installed
    ]
    if settings.control_by_default and settings.control is None:
        lines.append(
            "control: 127.0.0.1:8090 is in use, not opened; --control HOST:PORT chooses another, --control off none"
        )
    if settings.grpc is not None and "grpc" not in dict(listeners):
        lines.append(f"grpc: {settings.grpc} is in use, not opened; --grpc HOST:PORT chooses another, --grpc off none")
    lines += [
        f"{key}: in the configuration file, but no flag of this command, not used" for key in settings.unused_keys
    ]
    named = settings.rules if settings.control is None else settings.control.rules
    if settings.demo and named is None and rules_path is not None:
        gateway = dict(listeners)["gateway"]
        lines += ["", "try, in another shell:", *(f"  {line}" for line in tries(gateway, rules_path)), ""]
    try:
        print("\n".join(lines), file=out, flush=True)
    except OSError as error:
        raise ConfigurationError(f"cannot write to standard output: {error.strerror}") from error


def _rules(settings: Settings, rules_path: Path | None, ruleset: RuleSet | None) -> str:
    count = "" if ruleset is None else f"{len(ruleset.rules)} rules; "
    if settings.feed is None or settings.control is not None:
        return f"{rules_path} ({count}an edit is live within a second)"
    version = "" if ruleset is None else f"version {ruleset.version}, "
    return f"{settings.feed.url} ({version}{count}a change there is live within a second)"


def tries(gateway: str, rules_path: Path) -> list[str]:
    """Three command lines that show the gateway at work with the rules as they are in ``rules_path`` now.

    A request that passes; a burst that ends in 429, and the backend's own count; an edit of the rules, and the new answer.
    """
    lines = [f"curl -i {gateway}/api/hello"]
    quota = _LOGIN_QUOTA.search(rules_path.read_text())
    if quota is None:
        return lines
    limit = int(quota[2])
    burst = f"curl -s -o /dev/null -w '%{{http_code}} retry-after=%header{{retry-after}}\\n' -X POST '{gateway}/login?[1-{limit + 3}]'"
    lines.append(f"{burst}; curl -s {gateway}/_demo/count")
    file = shlex.quote(str(rules_path))
    edit = f"sed -i 's|quota: {limit}/minute|quota: {limit * 10}/minute|' {file}"
    lines.append(f"{edit}; sleep 1; curl -i -X POST {gateway}/login")
    return lines
