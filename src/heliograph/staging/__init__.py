"""Messages that are laid aside, by many, until somebody publishes all of them, once: what Spark's sink is made of."""
