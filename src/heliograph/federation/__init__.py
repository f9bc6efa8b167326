"""Stations that relay to one another: who may, how the other end is known, and what is said on the wire."""
