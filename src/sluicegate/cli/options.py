"""What all commands share: flags with environment variables, the configuration file, and types of values.

A value is taken from the flag, else from its environment variable ``SLUICEGATE_<FLAG>``, else from the configuration file
(``--config FILE``, by default ``sluicegate.yaml`` in the working directory if there is one), else from the default.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click
import yaml
from click.core import ParameterSource

from sluicegate.bounds import CONFIG_BYTES_MAX, DURATION_S_MAX
from sluicegate.doors.listen import Address
from sluicegate.errors import ConfigurationError

__all__ = [
    "CONFIG_NAME",
    "AddressType",
    "DurationType",
    "Group",
    "ListenerType",
    "NumberType",
    "all_of",
    "config_option",
    "flag",
    "option",
    "suggestion",
]

CONFIG_NAME = "sluicegate.yaml"
ENV_PREFIX = "SLUICEGATE_"

Function = TypeVar("Function", bound=Callable[..., Any])


class AddressType(click.ParamType):  # type: ignore[type-arg]  # not generic in all releases we accept
    """``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:PATH``, as an ``Address``."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        try:
            return Address.parse(str(value))
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


class ListenerType(AddressType):
    """An address, or ``off``: no listener, None. YAML reads a bare ``off`` as false, which is taken for it."""

    takes_off = True

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address | None:  # type: ignore[override]
        return None if value is False or value == "off" else super().convert(value, param, ctx)


class DurationType(click.ParamType):  # type: ignore[type-arg]  # not generic in all releases we accept
    """A length of time, ``5``, ``5s``, ``500ms`` or ``2m``, as seconds (a float, 0 to ``DURATION_S_MAX``). A bare number is seconds."""

    name = "duration"
    _FORM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)?")
    _SECONDS: ClassVar = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = self._FORM.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not a duration: use for instance 5s, 500ms or 2m", param, ctx)
        seconds = float(found[1]) * self._SECONDS[found[2]]
        if seconds > DURATION_S_MAX:
            self.fail(f"{value!r} is longer than {DURATION_S_MAX}s, the longest there is", param, ctx)
        return seconds


class NumberType(click.FloatRange):
    """A finite number in a range. ``click.FloatRange`` alone lets "nan" pass, which is neither below nor above any bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class _Option(click.Option):
    """An option whose complaint names its environment variable only where the value may have come, or may come, from there."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        if ctx is not None and ctx.get_parameter_source(self.name) is ParameterSource.COMMANDLINE:
            return " / ".join(f"'{name}'" for name in self.opts)
        return super().get_error_hint(ctx)  # type: ignore[arg-type, unused-ignore]  # older releases take no None


class Group(click.Group):
    """A group whose complaint about an unknown command says whether it is a slip or not there yet.

    ``later`` are the names reserved for capabilities this version does not have.
    """

    def __init__(self, *args: Any, later: frozenset[str] = frozenset(), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.later = later

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            if name in self.later:
                ctx.fail(f"the command {name!r} is not in this version")
            ctx.fail(f"no such command {name!r}{suggestion(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


def all_of(*decorators: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Several options as one decorator, in this order."""

    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def option(name: str, *, help: str, **attributes: Any) -> Callable[[Function], Function]:  # noqa: A002
    """A flag ``--NAME VALUE`` (or a switch, ``NAME/--no-NAME``) that is also ``SLUICEGATE_NAME`` and the key ``NAME`` of the configuration file."""
    attributes.setdefault("show_default", attributes.get("default") not in (None, ()))
    variable = ENV_PREFIX + name.split("/", maxsplit=1)[0].upper().replace("-", "_")
    return click.option(f"--{name}", cls=_Option, envvar=variable, show_envvar=True, help=help, **attributes)


def flag(name: str, *, help: str) -> Callable[[Function], Function]:  # noqa: A002
    """A switch ``--NAME``, off unless given; ``SLUICEGATE_NAME=1`` and ``NAME: true`` in the file turn it on."""
    return option(name, help=help, is_flag=True, default=False, show_default=False)


def config_option() -> Callable[[Function], Function]:
    """``--config FILE``: read before all other flags, it gives their values where nothing else does."""
    return click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar=f"{ENV_PREFIX}CONFIG",
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        callback=_use_config,
        help=f"File with values of flags.  [default: {CONFIG_NAME}, if present]",
    )


def suggestion(word: str, known: list[str]) -> str:
    """`` (did you mean 'x'?)``, or nothing where no known word is near."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _use_config(ctx: click.Context, _param: click.Parameter, value: Path | None) -> None:
    path = value or Path(CONFIG_NAME)
    if value is None and not path.is_file():
        return
    given = _read_mapping(path)
    known = dict(_file_options(ctx.find_root().command, ctx))
    for key, content in given.items():
        if key not in known:
            raise ConfigurationError(f"{path}: unknown key {key!r}{suggestion(str(key), sorted(known))}")
        _check_value(path, key, content, known[key])
    ctx.default_map = {known[key].name or key: content for key, content in given.items() if content is not None}
    ctx.meta["sluicegate.config"] = str(path)
    ctx.meta["sluicegate.unused"] = [
        key for key in given if known[key].name not in {each.name for each in ctx.command.params}
    ]


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    if len(raw) > CONFIG_BYTES_MAX:
        raise ConfigurationError(f"{path} is larger than {CONFIG_BYTES_MAX} bytes")
    try:
        content = yaml.safe_load(raw)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} must be a mapping of flags to values, as in 'store: memory://'")
    return content


def _check_value(path: Path, key: str, content: Any, parameter: click.Option) -> None:
    many = isinstance(content, list)
    items = content if many else [content]
    if many and not parameter.multiple:
        raise ConfigurationError(f"{path}: {key} takes one value, not a list")
    if parameter.is_flag and not isinstance(content, bool):
        raise ConfigurationError(f"{path}: {key} must be true or false, got {content!r}")
    if any(item is not None and not isinstance(item, str | int | float) for item in items):
        raise ConfigurationError(f"{path}: {key} must be text or a number, got {content!r}")
    is_off = content is False and getattr(parameter.type, "takes_off", False)
    if not parameter.is_flag and isinstance(content, bool) and not is_off:
        raise ConfigurationError(f"{path}: {key} must be text or a number, got {content!r}")


def _file_options(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, click.Option]]:
    """Every option of every command by its name in the file, which is that of the flag."""
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            if child is not None:
                yield from _file_options(child, ctx)
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name not in ("config", "help", "version"):
            long = max(parameter.opts, key=len)
            yield long.lstrip("-"), parameter
