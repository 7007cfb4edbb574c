"""Every maximum in the package, each with its reason.

A value that grows with traffic, input or configuration has its bound here, in the file of its part; what is cut off by a bound
is counted or reported where that happens.
"""

from __future__ import annotations

from sluicegate.bounds.accuracy import *  # noqa: F403
from sluicegate.bounds.analytics import *  # noqa: F403
from sluicegate.bounds.clickhouse import *  # noqa: F403
from sluicegate.bounds.control import *  # noqa: F403
from sluicegate.bounds.counters import *  # noqa: F403
from sluicegate.bounds.doors import *  # noqa: F403
from sluicegate.bounds.feed import *  # noqa: F403
from sluicegate.bounds.gateway import *  # noqa: F403
from sluicegate.bounds.grpc import *  # noqa: F403
from sluicegate.bounds.heat import *  # noqa: F403
from sluicegate.bounds.identity import *  # noqa: F403
from sluicegate.bounds.kafka import *  # noqa: F403
from sluicegate.bounds.leases import *  # noqa: F403
from sluicegate.bounds.lists import *  # noqa: F403
from sluicegate.bounds.offenders import *  # noqa: F403
from sluicegate.bounds.recording import *  # noqa: F403
from sluicegate.bounds.redis import *  # noqa: F403
from sluicegate.bounds.regions import *  # noqa: F403
from sluicegate.bounds.replay import *  # noqa: F403
from sluicegate.bounds.rollouts import *  # noqa: F403
from sluicegate.bounds.rules import *  # noqa: F403
from sluicegate.bounds.servers import *  # noqa: F403
from sluicegate.bounds.simulation import *  # noqa: F403
from sluicegate.bounds.suggestions import *  # noqa: F403
from sluicegate.bounds.telemetry import *  # noqa: F403
