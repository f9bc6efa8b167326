"""The archive: channels as Parquet files by channel and date, and a manifest of each channel that says what is in it.

    ARCHIVE/channel=alerts/date=2026-11-16/0-00000000000000001000-5f3a….parquet
    ARCHIVE/channel=alerts/_manifest.json     which files there are, and how far the channel is archived
    ARCHIVE/_staged/                          files on their way in
    ARCHIVE/_old/                             files that were merged into larger ones, for readers that still have them
    ARCHIVE/_lock                             held while somebody changes it

The manifest is the truth. With a new one, in one step, files are in the archive and the position is beyond them, or
neither: whatever dies when, nothing is archived twice and nothing is left out. Moving the files to where they belong
comes afterwards, and whoever opens the archive next finishes it. Other tools read ``channel=*/date=*/*.parquet``.
"""
