"""Analytics put together: what a node tells, to whom, and who is asked."""
