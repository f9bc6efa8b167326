"""``python -m heliograph`` is ``helio``."""

from __future__ import annotations

from heliograph.cli.main import main

if __name__ == "__main__":
    main()
