"""The process of the rules service."""
