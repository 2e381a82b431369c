"""What a person sees of a download on a terminal: a bar with how much has come."""

from __future__ import annotations

import os
import pty
import re
from contextlib import redirect_stderr, suppress

import pytest

from photofinish.display import DownloadDisplay


def read_all(terminal: int) -> str:
    """What was drawn on a terminal until its last writer was gone, which reading it reports as an error."""
    drawn = b""
    with os.fdopen(terminal, "rb", buffering=0) as far_end, suppress(OSError):
        while chunk := far_end.read(1 << 16):
            drawn += chunk
    return drawn.decode()


def test_on_a_terminal_a_bar_tells_how_much_has_come_and_messages_stand_above_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stderr, redirect_stderr(stderr), DownloadDisplay("images.gz") as shown:
        shown.began("http://localhost/[images].gz", 20_000, 50_000)
        shown.advance(5_000)
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read_all(ours))
    assert "images.gz  fetching http://localhost/[images].gz (50.0 kB, from 20.0 kB on)" in drawn
    assert re.search(r"images.gz .*25\.0/50\.0 kB", drawn)


def test_in_a_log_a_download_of_unknown_size_is_a_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    with DownloadDisplay("images.gz") as shown:
        shown.began("http://localhost/images.gz", 0, None)
        shown.advance(5_000)
    assert capsys.readouterr().err == "images.gz  fetching http://localhost/images.gz (of unknown size)\n"
