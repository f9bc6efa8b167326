"""A reader that wakes and waits again at once is not forgotten by the one who woke it."""

from __future__ import annotations

from pathlib import Path

from heliograph.clock import SYSTEM_CLOCK
from heliograph.disk import Disk
from heliograph.log.head import NEWS_WANTED, Fields, Head
from heliograph.log.news import News


class QuickReader(Disk):
    """As soon as the news are written, the reader has read everything and asks for news again."""

    reader: News | None = None

    def pwrite(self, fd: int, data: bytes, position: int) -> int:  # type: ignore[override]
        if self.reader is not None:
            self.reader.arm()
        return super().pwrite(fd, data, position)


def test_a_reader_that_waits_again_at_once_gets_the_next_news_too(tmp_path: Path) -> None:
    disk = QuickReader()
    Head.create(tmp_path / "head", disk, bytes(16), Fields())
    writer_head, reader_head = Head(tmp_path / "head", disk), Head(tmp_path / "head", disk)
    writer = News(tmp_path / "news", writer_head, disk, SYSTEM_CLOCK)
    reader = News(tmp_path / "news", reader_head, disk, SYSTEM_CLOCK)
    reader.arm()
    disk.reader = reader
    writer.tell()
    disk.reader = None
    assert writer_head.words[NEWS_WANTED], "the second wish was wiped out: its reader sleeps for a second"
    for news, head in ((writer, writer_head), (reader, reader_head)):
        news.close()
        head.close()
