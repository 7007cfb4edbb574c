"""A process of its own that asks for one estimated counter: for a while at a pace, then as fast as it can. Tells when it was admitted."""

from __future__ import annotations

import json
import sys
import time

from sluicegate.algorithms import Precision, TokenBucket
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import EVERYBODY, counter_prefix
from sluicegate.stores.near.settings import NearSettings
from sluicegate.stores.near.store import NearStore
from sluicegate.stores.redis import RedisStore


def main() -> None:
    """``url rate pace paced_s flat_out_s`` -> {"paced": [...], "fast": [...], "asked": n, "calls": n}, times in milliseconds of the wall clock."""
    url, rate, pace, paced_s, fast_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *map(float, sys.argv[4:])
    spec = TokenBucket(rate, rate, US_PER_S)
    prefix = counter_prefix("default", "r", spec.algorithm, spec.shape)
    counter = Counter("r", spec, prefix, precision=Precision.ESTIMATED)
    redis = RedisStore(url)
    store = NearStore(redis, NearSettings(denials_max=0), SystemClock())
    redis.decide_one([(counter, EVERYBODY, 1)], peek=True)
    print("ready", flush=True)
    begin_s = float(sys.stdin.readline())
    told: dict[str, object] = {}
    asked = 0
    for name, until_s, pause_s in (("paced", begin_s + paced_s, 1 / pace), ("fast", begin_s + paced_s + fast_s, 0.0)):
        times = []
        while (now_s := time.time()) < until_s:
            asked += 1
            if store.decide_one([(counter, EVERYBODY, 1)]).admitted:
                times.append(int(now_s * 1_000))
            # Flat out, and yet leaving a turn to others on the same core.
            time.sleep(pause_s or 0.0002)
        told[name] = times
    told["asked"], told["calls"] = asked, redis.stats.calls
    print(json.dumps(told), flush=True)
    store.close()


main()
