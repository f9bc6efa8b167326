"""Stations that relay to each other.

What is said over a link, and what it means, is decided without any I/O: bytes, facts and a clock in, frames and
events out. docs/protocol.md is its specification. Sockets are a thin shell around it.
"""
