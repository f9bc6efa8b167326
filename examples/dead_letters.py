"""What happens to a message whose handler fails: tried again, then set aside with the reason, never lost."""

from __future__ import annotations

import sys
import tempfile
import threading

import heliograph as hg


def main(directory: str) -> None:
    handled: list[str] = []
    done = threading.Event()
    asked = 0

    def send_mail(message: hg.Message) -> None:
        nonlocal asked
        match message.data["to"]:
            case "greylisted@example.com" if asked == 0:
                asked += 1
                raise hg.RetryLater(0.05, "the server says: try again later")
            case "nobody":
                raise ValueError("'nobody' is no address")
        handled.append(message.data["to"])
        if message.data["to"] == "ada@example.com":
            done.set()

    with hg.open(directory, name="host1") as station:
        for to in ("greylisted@example.com", "nobody", "ada@example.com"):
            station.publish("mails", {"to": to})

        patience = hg.Retry(max_retries=2, base_s=0.01)  # the defaults: 5 retries, 100 ms to 5 s
        with station.subscribe("mails", send_mail, name="mailer", start="first", retry=patience):
            done.wait(30)
        print(f"handled: {', '.join(handled)}")

        for letter in station.read("mails.dead-letter"):
            told = letter.data
            print(f"dead: offset {told['offset']} of {told['channel']}, {told['error']}")
            print(f"      after {told['attempts']} attempts by {told['subscription']}; {told['original']['data']}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="heliograph-"))
