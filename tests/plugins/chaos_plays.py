"""What is done to a fleet with leases and to its servers; each play lasts as long as its scene."""

from __future__ import annotations

from chaos_stage import Stage

__all__ = ["away", "evict", "fail_over", "flush", "quiet", "restart", "restart_empty", "storm"]


def quiet(stage: Stage) -> None:
    """Nothing happens."""
    stage.wait(1)


def storm(stage: Stage) -> None:
    """Holders are killed, or stopped for longer than a lease; connections are cut, slow, or stand still. The server keeps all it was told."""
    draw, ttl_s = stage.draw, stage.scene.ttl_us / 1e6
    while stage.part < 0.95:
        stage.wait_s(draw.uniform(0.05, 0.25))
        act = draw.choice(("kill", "stop", "stop", "cut", "slow", "away"))
        if act == "kill":
            stage.kill(draw.choice(stage.alive()))
            stage.add()
        elif act == "stop":
            name = draw.choice(stage.alive())
            stage.stop(name)
            stage.wait_s(draw.uniform(1.1, 2.5) * ttl_s)
            stage.go_on(name)
        elif stage.proxy is not None:
            if act == "cut":
                stage.proxy.cut_replies = draw.randint(1, 4)
            elif act == "slow":
                stage.proxy.delay_s = draw.uniform(0, ttl_s)
                stage.wait_s(draw.uniform(0.5, 2) * ttl_s)
                stage.proxy.delay_s = 0
            else:
                away(stage)


def away(stage: Stage) -> None:
    """Nothing gets through for a while."""
    assert stage.proxy is not None
    stage.proxy.passing.clear()
    stage.wait_s(stage.draw.uniform(0.5, 2) * stage.scene.ttl_us / 1e6)
    stage.proxy.passing.set()


def restart(stage: Stage) -> None:
    """The server is killed twice and comes back with all that it has written."""
    for part in (0.35, 0.65):
        stage.wait(part + stage.draw.uniform(-0.05, 0.05))
        server = stage.server
        assert server is not None
        stage.end_server(server)
        stage.wait_s(stage.draw.uniform(0, 0.3))
        stage.server = stage.start_server(*stage.scene.options, port=server.port)
    stage.wait(1)


def restart_empty(stage: Stage) -> None:
    """The server is killed once, and comes back with nothing."""
    stage.wait(stage.draw.uniform(0.4, 0.6))
    server = stage.server
    assert server is not None
    stage.end_server(server)
    stage.server = stage.start_server(*stage.scene.options, port=server.port)
    stage.wait(1)


def flush(stage: Stage) -> None:
    """All counters are deleted, once."""
    admin = stage.admin()
    stage.wait(stage.draw.uniform(0.4, 0.6))
    admin.flushall()
    stage.wait(1)


def evict(stage: Stage) -> None:
    """The server is short of memory for a moment and evicts all that may be evicted, once."""
    admin = stage.admin()
    admin.config_set("maxmemory-policy", "volatile-ttl")
    stage.wait(stage.draw.uniform(0.4, 0.6))
    # Until there is something: holders may be late. Each time in one package, so that nobody else has a turn in between.
    while not admin.info("stats")["evicted_keys"] and stage.part < 0.9:
        moment = admin.pipeline(transaction=False)
        moment.config_set("maxmemory", 1)
        moment.ping()
        moment.config_set("maxmemory", 0)
        moment.execute()
    assert admin.info("stats")["evicted_keys"] > 0
    stage.wait(1)


def fail_over(stage: Stage) -> None:
    """A replica that has not heard the last of it takes over."""
    replica, between = stage.replica()
    master, proxy = stage.server, stage.proxy
    assert master is not None
    assert proxy is not None
    stage.wait(stage.draw.uniform(0.35, 0.5))
    between.passing.clear()
    stage.wait_s(stage.draw.uniform(0.05, 0.4))
    stage.end_server(master)
    stage.server = replica
    stage.admin().replicaof("NO", "ONE")
    proxy.turn_to(replica.port)
    stage.wait(1)
