"""Signal handlers that raise, as time limits of workers and Ctrl-C do, in the middle of a call."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import signal, time
from sluicegate.algorithms import TokenBucket
from sluicegate.clock import ManualClock
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis.beats import Beats
from sluicegate.stores.redis.link import packed
from sluicegate.stores.redis.packing import Packing
from sluicegate.stores.redis.secret import Subjects
from sluicegate.stores.redis.settings import RedisSettings

class Late(Exception):
    pass

def late(*_):
    raise Late

bucket = TokenBucket(5, 1, 1_000)
counter = Counter("r", bucket, counter_prefix("test", "r", bucket.algorithm, bucket.shape))
packing = Packing(Subjects(plain=True, secret=None), ManualClock(), "here")
command = packing.decide([((counter, "ip:192.0.2.1", 1),)])
commands = [
    command.parts(), command.parts_in_full(), Beats().words(), *RedisSettings(db=3, password="p").handshake(),
]
signal.signal(signal.SIGALRM, late)
interrupted, until = 0, time.monotonic() + 1
while time.monotonic() < until:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.000_1)
        while True:
            packed(commands)
    except Late:
        interrupted += 1
print(interrupted)
"""


def test_a_time_limit_that_strikes_while_a_command_is_packed_is_an_exception() -> None:
    """It reaches whoever set it. Numbers that hiredis turns into text itself would crash the process, so it gets none."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
