"""The flags of a server that has its rules from a rules service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sluicegate.app.feed.settings import FeedSettings
from sluicegate.cli.options import DurationType, flag, option
from sluicegate.errors import ConfigurationError

__all__ = ["feed_of", "feed_options"]

Function = TypeVar("Function", bound=Callable[..., Any])

_PATH: Final = click.Path(path_type=Path)
_DURATION: Final = DurationType()


def feed_options() -> tuple[Callable[[Function], Function], ...]:
    """``--control-url`` and what belongs to it."""
    return (
        option(
            "control-url",
            metavar="URL",
            help="Rules service that the rules, lists and subjects come from: http://HOST:PORT, https://... or unix:PATH. "
            "--rules is then what to begin with where it gives none.",
        ),
        option("control-token", metavar="TOKEN", help="Token of the role node for the rules service."),
        option(
            "control-token-file", type=_PATH, metavar="FILE", help="File that holds it; read again when it is refused."
        ),
        option(
            "control-ca", type=_PATH, metavar="FILE", help="Certificates to trust for https; without it the system's."
        ),
        option(
            "control-cert",
            type=_PATH,
            metavar="FILE",
            help="This node's certificate, for a rules service that asks for one.",
        ),
        option("control-key", type=_PATH, metavar="FILE", help="The key of --control-cert."),
        flag("control-allow-plaintext", help="Speak without TLS to a rules service on another machine."),
        option(
            "control-wait",
            type=_DURATION,
            default="10s",
            help="Time to wait at start for rules, where none were kept and --rules names none.",
        ),
        option(
            "control-push",
            metavar="URL|off",
            help="Redis or PostgreSQL that tells of changes.  [default: the store's Redis, if it is one]",
        ),
        option(
            "node-name",
            default="",
            metavar="NAME",
            help="Name at the rules service; with several workers NAME-1 and so on.  [default: HOST-PROCESS]",
        ),
        option("report-interval", type=_DURATION, default="5s", help="Time between two reports to the rules service."),
    )


def feed_of(values: Mapping[str, Any]) -> FeedSettings | None:
    """What the flags say; None without ``--control-url``. Raises ConfigurationError where they contradict each other."""
    url = values["control_url"]
    needless = [name for name in ("token", "token_file", "ca", "cert", "key", "push") if values[f"control_{name}"]]
    if not url:
        if needless:
            raise ConfigurationError(f"--control-{needless[0].replace('_', '-')} needs --control-url")
        return None
    return FeedSettings(
        url=url,
        token=values["control_token"],
        token_file=values["control_token_file"],
        ca=values["control_ca"],
        certificate=values["control_cert"],
        key=values["control_key"],
        push=values["control_push"],
        node=values["node_name"],
        report_interval_s=values["report_interval"],
        wait_s=values["control_wait"],
        allow_plaintext=values["control_allow_plaintext"],
    )
