"""How fast and how small Heliograph is, beside what the machine can do at all. Run with ``python -m bench``."""
