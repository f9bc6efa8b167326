"""Segments, index, recovery, retention: the only room that touches the files of a log."""
