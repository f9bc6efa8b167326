"""Where logs, positions and leases live: the port every storage answers to, and its adapters."""
