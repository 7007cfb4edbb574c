"""The system check: ``manage.py check`` says what is wrong with the setting ``SLUICEGATE`` and the rules it names.

It is there once this package was imported, which an entry in ``INSTALLED_APPS`` sees to. What it makes of the settings is kept for
the first request. Whether the store can be reached is not looked at: that is no mistake of the settings, and a site serves without.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from django import conf as django_conf
from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004 -- Django's name of it

from sluicegate.doors.django.conf import SETTING, configured
from sluicegate.errors import ConfigurationError
from sluicegate.rules.problems import Problem, RulesInvalid
from sluicegate.rules.watched import check_file

__all__ = ["check_settings"]

_INVALID: Final = "sluicegate.E001"
_DOUBTFUL: Final = "sluicegate.W001"


def check_settings(**_: Any) -> list[CheckMessage]:
    """What is wrong with the settings, one message for each problem of a rules file; its warnings, too."""
    try:
        configured()
    except RulesInvalid as error:
        return [_message(problem) for problem in error.problems]
    except ConfigurationError as error:
        return [Error(str(error), id=_INVALID)]
    given = getattr(django_conf.settings, SETTING, {})
    rules = None if "LIMITER" in given else given.get("RULES")
    return [_message(problem) for problem in check_file(Path(rules))[1]] if rules else []


def _message(problem: Problem) -> CheckMessage:
    if problem.severity == "error":
        return Error(str(problem), id=_INVALID)
    return Warning(str(problem), id=_DOUBTFUL)


register(check_settings)
