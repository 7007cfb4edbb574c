"""Who sent a request, as far as it can be verified."""
