"""Publishing messages of archive and log once more: which, in which order, and how far that has come."""
