"""What is generated into the documents is what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATE = ROOT / "docs" / "generate.py"


def test_the_generated_parts_of_the_documents_are_in_step() -> None:
    done = subprocess.run([sys.executable, GENERATE, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nrun: python docs/generate.py"


def anchor(title: str) -> str:
    """What GitHub and its like make of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def test_links_to_headings_lead_somewhere() -> None:
    pages = {path: path.read_text("utf-8") for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]}
    headings = {
        path: {anchor(title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)} for path, text in pages.items()
    }
    for path, text in pages.items():
        for target, name in re.findall(r"\]\(([\w./-]*\.md)?#([\w-]+)\)", text):
            page = (path.parent / target).resolve() if target else path
            assert page not in headings or name in headings[page], f"{path.name} links to {target}#{name}"
