"""What ``sluicegate top`` shows, and how it listens to keys."""
