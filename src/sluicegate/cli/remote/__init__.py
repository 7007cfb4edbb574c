"""Commands on a rules service: over HTTP, or on its database where it lies."""
