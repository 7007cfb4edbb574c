"""Sluicegate: a distributed rate limiter. Public names only."""
