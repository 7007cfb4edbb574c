"""A store in front of one that many processes share: it answers in this process what it can."""
