"""What ``sluicegate suggest`` prints, and what it makes drafts of."""
