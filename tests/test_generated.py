"""The documents are in step with the code: what is generated, what is listed, what is linked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import heliograph as hg

ROOT = Path(__file__).resolve().parent.parent
GENERATE = ROOT / "docs" / "generate.py"
INTERNAL = {"open_range", "lines"}  # for the rooms above, and how a message holds its line


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


def test_every_public_name_and_method_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    methods = {
        name
        for cls in (hg.Station, hg.Subscription, hg.Message, hg.Draft)
        for name in dir(cls)
        if not name.startswith("_") and name not in INTERNAL
    }
    missing = [name for name in sorted(methods | set(hg.__all__)) if not re.search(rf"\b{name}\b", page)]
    assert not missing, f"docs/api.md does not mention: {', '.join(missing)}"


def test_every_event_of_the_audit_log_is_documented() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    sources = [path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")]
    events = {event for source in sources for event in re.findall(r'audit\.write\(\s*"([\w-]+)"', source)}
    assert events
    missing = [event for event in sorted(events) if f"`{event}`" not in page]
    assert not missing, f"docs/operations.md does not mention: {', '.join(missing)}"
