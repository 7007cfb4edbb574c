"""How many servers a store has, and how they are found, by its settings."""

from __future__ import annotations

from sluicegate.stores.redis.calls import Calls
from sluicegate.stores.redis.cluster import ClusterRouter
from sluicegate.stores.redis.cluster_calls import ClusterCalls
from sluicegate.stores.redis.node import Node, Surroundings
from sluicegate.stores.redis.packing import Packing
from sluicegate.stores.redis.router import Router, SingleRouter
from sluicegate.stores.redis.secret import Subjects
from sluicegate.stores.redis.sentinel import SentinelRouter
from sluicegate.stores.redis.settings import RedisSettings

__all__ = ["topology_of"]


def topology_of(
    settings: RedisSettings, subjects: Subjects, packing: Packing, surroundings: Surroundings
) -> tuple[Router, Calls]:
    """(where commands go, what is sent): of a cluster, of the master behind Sentinels, or of one server."""
    if settings.is_cluster:
        router = ClusterRouter(settings, subjects, surroundings)
        return router, ClusterCalls(packing, router.slot_of, surroundings.stats)
    if settings.service is not None:
        return SentinelRouter(settings, surroundings), Calls(packing)
    return SingleRouter(Node(settings, surroundings)), Calls(packing)
