"""The HTTP interface of the rules service."""
