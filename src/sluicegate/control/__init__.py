"""The rules service: who may change which rule, what was changed, and what nodes are told. Needs the extra `control`."""
