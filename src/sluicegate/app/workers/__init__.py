"""Several processes that serve as one: a supervisor, its workers, and what they share.

Theory of operation. The first process (``supervisor``) serves nobody. It validates the configuration, reserves the addresses, starts the
embedded store where one is wanted, then worker 1; when that is ready, all others, so that a mistake is reported once. A worker
(``child``, and ``life`` for what any such process does) is a fresh process that runs the same server as a single process does; the kernel spreads connections over the
workers' listeners (``SO_REUSEPORT``), and of a Unix socket all accept from one queue. Supervisor and worker hold the two ends of a
socket pair (``messages``): over it a worker gets its settings, so that no secret stands in a process list, and the end of either
process is seen by the other at once, however it came about.
"""
