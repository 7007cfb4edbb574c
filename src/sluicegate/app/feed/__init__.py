"""A node's side of a rules service: asking, being told, keeping what was told, and reporting."""
