"""A file that is fetched is whole and right, or an error says why not; what came is never asked for again."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import faulty_server as server_side
import pytest
import requests
from faulty_server import FileServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from photofinish.data import fetching
from photofinish.data.fetching import Fetcher
from photofinish.errors import UserError

CONTENT = bytes(index * 7 % 251 for index in range(50_000))
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()
WHERE = "MNIST/raw/images.gz"
HALF = len(CONTENT) // 2


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_RETRIES", fetching._RETRIES.new(total=3, backoff_factor=0))
    monkeypatch.setattr(fetching, "_SHORTEST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(fetching, "STALL_SECONDS", 0.3)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("DVC_ROOT", raising=False)


@dataclass(frozen=True)
class Site:
    """A server that has a file, a cache, and where the file is wanted."""

    server: FileServer
    cache: Path
    target: Path

    def fetch(
        self,
        *urls: str,
        mirror: str | None = None,
        where: str = WHERE,
        md5: str | None = MD5,
        sha256_prefix: str | None = None,
    ) -> None:
        urls = urls or (self.server.url("images.gz"),)
        Fetcher(mirror, self.cache).fetch(urls, self.target, where=where, md5=md5, sha256_prefix=sha256_prefix)

    def is_fetched(self) -> bool:
        return self.target.read_bytes() == CONTENT

    @property
    def parts(self) -> list[Path]:
        return list(self.cache.glob("*.part"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with server_side.serving() as running:
        running.files["images.gz"] = CONTENT
        yield Site(running, tmp_path / "cache", tmp_path / "raw" / "images.gz")


def test_a_file_comes_with_the_folders_above_it_and_nothing_beside_it(site: Site) -> None:
    site.fetch()
    assert site.is_fetched()
    assert site.target.stat().st_mode & 0o777 == 0o644
    assert list(site.target.parent.iterdir()) == [site.target]
    assert site.parts == []
    assert site.server.user_agents == ["photofinish"]


def test_a_file_that_was_fetched_needs_no_server_again_and_is_no_link(site: Site) -> None:
    site.fetch()
    site.target.chmod(0o444)
    site.target.unlink()
    site.fetch()
    assert site.is_fetched()
    assert site.target.stat().st_nlink == 1
    assert len(site.server.asked) == 1


@pytest.mark.parametrize("damaged", ["whole", "checksum", "no checksum"])
def test_a_damaged_file_in_the_cache_is_fetched_again(
    site: Site, damaged: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.fetch()
    checksum = next(site.cache.glob("*.sha256"))
    kept, why = checksum.with_suffix(""), ""
    if damaged == "whole":
        kept.write_bytes(CONTENT[:-1] + b"!")
        why = f"its sha256 should start with {SHA256} and is {hashlib.sha256(kept.read_bytes()).hexdigest()}"
    elif damaged == "checksum":
        checksum.write_bytes(b"\xff")
        why = f"{checksum.name} holds no sha256"
    else:
        checksum.unlink()
    capsys.readouterr()
    site.fetch()
    assert (f"{kept} is damaged ({why}): it is fetched again\n" in capsys.readouterr().err) == bool(why)
    assert site.is_fetched()
    assert len(site.server.asked) == 2


@pytest.mark.parametrize("expected", [{"md5": MD5.upper()}, {"md5": None, "sha256_prefix": SHA256[:8]}, {"md5": None}])
def test_any_checksum_or_none_will_do(site: Site, expected: dict[str, str | None]) -> None:
    site.fetch(**expected)
    assert site.is_fetched()


PASSING_FAULTS = {
    "lost midway": server_side.cut_after(HALF),
    "lost before the first byte": server_side.cut_after(0),
    "reset": server_side.reset,
    "stalled midway": server_side.stalled_after(HALF),
    "stalled at once": server_side.stalled_after(0),
    "internal error": server_side.status(500),
    "unavailable": server_side.status(503, Retry_After="0"),
    "too many requests": server_side.status(429, Retry_After="Thu, 01 Jan 1970 00:00:00 GMT"),
    "odd Retry-After": server_side.status(429, Retry_After="soon"),
    "spoilt": server_side.spoilt,
    "chunks that end early": server_side.chunked(end_early=True),
}
FROM_ITS_START: list[str | None] = [None]
FAULTS_OF_RESUMING: dict[str, tuple[server_side.Fault, list[str | None]]] = {
    "range ignored": (server_side.ignoring_range, []),
    "416": (server_side.status(416), FROM_ITS_START),
    "wrong offset": (server_side.from_a_wrong_byte, FROM_ITS_START),
    "length not named": (server_side.without_length, []),
    "rest lost too": (server_side.cut_after(HALF // 2), [f"bytes={HALF + HALF // 2}-"]),
    "rest spoilt": (server_side.spoilt, FROM_ITS_START),
}


@pytest.mark.parametrize("fault", PASSING_FAULTS.values(), ids=PASSING_FAULTS.keys())
def test_a_fault_that_passes_is_got_over(site: Site, fault: server_side.Fault) -> None:
    site.server.faults = [fault]
    site.fetch()
    assert site.is_fetched()
    assert len(site.server.asked) == 2


@pytest.mark.parametrize(("fault", "asked_after_it"), FAULTS_OF_RESUMING.values(), ids=FAULTS_OF_RESUMING)
def test_a_fault_while_going_on_is_got_over_and_what_cannot_be_gone_on_from_is_fetched_anew(
    site: Site, fault: server_side.Fault, asked_after_it: list[str | None]
) -> None:
    site.server.faults = [server_side.cut_after(HALF), fault]
    site.fetch()
    assert site.is_fetched()
    assert site.server.ranges == [None, f"bytes={HALF}-", *asked_after_it]


def silent(handler: server_side.Handler) -> None:
    handler.files.closing.wait(server_side.STALL_LIMIT_SECONDS)


def of_another_size(handler: server_side.Handler) -> None:
    handler.begin(206, {"Content-Range": f"bytes {HALF}-{len(CONTENT)}/{len(CONTENT) + 1}"})


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        ([silent], "no byte came for 0.3 s; trying"),
        ([server_side.stalled_after(HALF)], f"no byte came for 0.3 s after {HALF} of {len(CONTENT)} bytes; trying"),
        ([server_side.chunked(end_early=True)], f"the connection ended after {HALF} bytes; trying"),
        ([server_side.status(429, Retry_After="soon")], "the server answers 429 Too Many Requests; trying"),
        (
            [server_side.cut_after(HALF), server_side.from_a_wrong_byte],
            f"asked for the bytes from {HALF} on, the server sends those from {HALF + 1} on; trying",
        ),
        ([server_side.cut_after(HALF), of_another_size], "the file is no longer the same on the server; trying"),
        (
            [server_side.cut_after(HALF), server_side.status(416)],
            "the server answers 416 Requested Range Not Satisfiable; trying",
        ),
        (
            [server_side.spoilt],
            f"not the file it should be: its md5 should be {MD5} and is "
            f"{hashlib.md5(bytes(byte ^ 1 for byte in CONTENT), usedforsecurity=False).hexdigest()}; fetching it",
        ),
    ],
    ids=["silent", "stalled", "cut off in chunks", "too many requests", "wrong byte", "another size", "416", "spoilt"],
)
def test_each_fault_is_told_before_the_next_try(
    site: Site, capsys: pytest.CaptureFixture[str], faults: list[server_side.Fault], told: str
) -> None:
    site.server.faults = list(faults)
    site.fetch()
    assert site.is_fetched()
    lines = [line for line in capsys.readouterr().err.splitlines() if "again" in line]
    assert lines[-1] == f"images.gz  {told} again{' in 0 s' if told.endswith('trying') else ''}"
    goes_on = told.startswith(("no byte came for 0.3 s after", "the connection ended"))
    assert site.server.ranges[-1] == (f"bytes={HALF}-" if goes_on else None)


def test_a_server_may_leave_open_how_long_the_whole_is(site: Site) -> None:
    def of_unknown_size(handler: server_side.Handler) -> None:
        handler.begin(206, {"Content-Range": f"bytes {HALF}-{len(CONTENT) - 1}/*"})
        handler.wfile.write(CONTENT[HALF:])

    site.server.faults = [server_side.cut_after(HALF), of_unknown_size]
    site.fetch()
    assert site.is_fetched()
    assert len(site.server.asked) == 2


def test_a_weak_etag_does_not_tell_whether_it_is_the_same_file_and_a_date_does(site: Site) -> None:
    def weak(handler: server_side.Handler) -> None:
        handler.begin(200, {"ETag": 'W/"1"', "Last-Modified": "a date", "Content-Length": str(len(CONTENT))})
        handler.wfile.write(CONTENT[:HALF])

    site.server.faults = [weak]
    site.fetch()
    assert site.server.if_ranges == [None, "a date"]


@pytest.mark.parametrize("answer", [server_side.without_length, server_side.chunked(end_early=False)])
def test_a_server_that_names_no_length_is_believed_when_the_checksum_is_right(
    site: Site, answer: server_side.Fault
) -> None:
    site.server.faults = [answer]
    site.fetch()
    assert site.is_fetched()
    assert len(site.server.asked) == 1


def test_only_what_is_missing_is_asked_for_and_only_of_the_same_file(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.server.faults = [server_side.cut_after(HALF)]
    site.fetch()
    etag = f'"{SHA256[:8]}"'
    assert site.server.ranges == [None, f"bytes={HALF}-"]
    assert site.server.if_ranges == [None, etag]
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"images.gz  fetching {site.server.url('images.gz')} (50.0 kB)"
    assert said[1] == f"images.gz  the connection ended after {HALF} of {len(CONTENT)} bytes; trying again in 0 s"
    assert said[2] == f"images.gz  fetching {site.server.url('images.gz')} (50.0 kB, from 25.0 kB on)"
    assert re.fullmatch(r"images.gz  fetched: 50.0 kB in \d+\.\d s", said[3])


def test_a_file_that_changed_on_the_server_meanwhile_is_fetched_from_its_start(site: Site) -> None:
    def cut_and_changed(handler: server_side.Handler) -> None:
        server_side.send(handler, sent=HALF)
        site.server.files["images.gz"] = bytes(reversed(CONTENT))

    site.server.faults = [cut_and_changed]
    site.fetch(md5=None)
    assert site.target.read_bytes() == bytes(reversed(CONTENT))


def test_without_etag_date_and_checksum_a_download_does_not_go_on_but_starts_anew(site: Site) -> None:
    site.server.etags = False
    site.server.faults = [server_side.cut_after(HALF)]
    site.fetch(md5=None)
    assert site.is_fetched()
    assert site.server.ranges == [None, None]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, len(CONTENT)), max_size=3), checked=st.booleans())
def test_wherever_connections_are_lost_the_file_is_whole_in_the_end(site: Site, cuts: list[int], checked: bool) -> None:
    shutil.rmtree(site.cache, ignore_errors=True)
    site.server.faults = [server_side.cut_after(cut) for cut in cuts]
    site.fetch(md5=MD5 if checked else None)
    site.server.faults = []
    assert site.is_fetched()


def test_good_progress_earns_new_tries(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_PROGRESS_BYTES", 5_000)
    site.server.faults = [server_side.cut_after(5_000) for _ in range(9)]
    site.fetch()
    assert site.is_fetched()
    assert site.server.ranges[-1] == "bytes=45000-"


def test_a_server_that_always_loses_the_connection_at_the_same_byte_is_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_PROGRESS_BYTES", 5_000)

    def cut(handler: server_side.Handler) -> None:
        server_side.send(handler, heed_range=False, sent=6_000)

    site.server.faults = [cut] * 20
    with pytest.raises(UserError, match="the connection ended after 6000 of 50000 bytes"):
        site.fetch()
    assert not site.target.exists()


def test_pauses_grow_and_a_server_that_says_how_long_to_wait_is_heeded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(fetching, "_RETRIES", fetching._RETRIES.new(backoff_factor=1))
    monkeypatch.setattr(fetching, "_SHORTEST_PAUSE_SECONDS", 1.0)
    site.server.faults = [server_side.status(503), server_side.status(429, Retry_After="7"), server_side.status(502)]
    site.fetch()
    assert [pause for pause in pauses if pause >= 1] == [1.0, 7.0, 4.0]


def test_a_server_that_asks_for_an_hour_is_given_up_at_once(site: Site) -> None:
    site.server.faults = [server_side.status(429, Retry_After="3600")]
    with pytest.raises(UserError, match=r"429 Too Many Requests, and asks for 3600 s of patience"):
        site.fetch()
    assert len(site.server.asked) == 1


@pytest.mark.parametrize("code", [400, 401, 403, 404, 410, 416, 501])
def test_what_is_refused_is_not_asked_for_again(site: Site, code: int) -> None:
    site.server.faults = [server_side.status(code)]
    with pytest.raises(
        UserError, match=rf"{site.server.url('images.gz')}: the server answers {code} .*`mirror:`.*{WHERE}"
    ):
        site.fetch()
    assert len(site.server.asked) == 1
    assert not site.target.exists()


def test_after_some_tries_the_message_names_the_address_and_the_way_out(site: Site) -> None:
    site.server.faults = [server_side.status(503)] * 9
    with pytest.raises(UserError, match=r"can't fetch http.*images.gz: the server answers 503 .*PHOTOFINISH_MIRROR"):
        site.fetch()
    assert len(site.server.asked) == 4


def test_what_another_address_delivers_leaves_no_part_of_the_first(site: Site) -> None:
    site.server.files["first/images.gz"] = CONTENT
    site.server.faults = [server_side.cut_after(HALF), *[server_side.status(503)] * 3]
    site.fetch(site.server.url("first/images.gz"), site.server.url("images.gz"))
    assert site.is_fetched()
    assert [path.name for path in site.cache.iterdir() if ".part" in path.name] == []


def test_a_certificate_that_is_not_trusted_is_told_with_the_variable_that_helps(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        try:
            raise ssl.SSLCertVerificationError(1, "certificate verify failed")
        except ssl.SSLError:
            raise requests.exceptions.SSLError  # noqa: B904  # as requests does

    monkeypatch.setattr(requests, "get", refuse)
    with pytest.raises(UserError, match=r"certificate verify failed; .*REQUESTS_CA_BUNDLE"):
        site.fetch("https://127.0.0.1/images.gz")


@pytest.mark.parametrize("faults", [[server_side.status(404)], [server_side.status(503)] * 4, [server_side.spoilt] * 2])
def test_where_one_address_fails_the_next_is_asked(site: Site, faults: list[server_side.Fault]) -> None:
    site.server.files["first/images.gz"] = CONTENT
    site.server.faults = [*faults]
    site.fetch(site.server.url("first/images.gz"), site.server.url("images.gz"))
    assert site.is_fetched()
    assert [path for path, _ in site.server.asked] == ["first/images.gz"] * len(faults) + ["images.gz"]


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed(site: Site, code: int) -> None:
    site.server.files["elsewhere.gz"] = CONTENT
    site.server.faults = [server_side.status(code, Location="/elsewhere.gz")]
    site.fetch()
    assert site.is_fetched()


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/images.gz", "data:,hello"])
def test_a_redirect_to_anything_but_http_is_refused(site: Site, place: str) -> None:
    site.server.faults = [server_side.status(302, Location=place)]
    with pytest.raises(UserError, match=rf"can't fetch .*{place}"):
        site.fetch()
    assert not site.target.exists()


def test_redirects_in_a_circle_end(site: Site) -> None:
    site.server.faults = [server_side.status(302, Location="/images.gz")] * 40
    with pytest.raises(UserError, match="redirects"):
        site.fetch()


NO_ADDRESSES = {
    "a file": "file:///etc/passwd",
    "another protocol": "ftp://127.0.0.1/images.gz",
    "a port that is no number": "http://127.0.0.1:port/images.gz",
    "a host that can be none": "http://no..host/images.gz",
}


@pytest.mark.parametrize("url", NO_ADDRESSES.values(), ids=NO_ADDRESSES)
def test_an_address_that_is_none_is_refused(site: Site, url: str) -> None:
    with pytest.raises(UserError, match=f"can't fetch {re.escape(url)}: "):
        site.fetch(url)


def test_wrong_bytes_are_fetched_once_more_then_an_error_names_both_checksums(site: Site) -> None:
    wrong = "0" * 32
    with pytest.raises(UserError, match=rf"images.gz: it is not .*md5 should be {wrong} and is {MD5}.*`mirror:`"):
        site.fetch(md5=wrong)
    assert site.server.ranges == [None, None]
    assert not site.target.exists()
    assert not [path for path in site.cache.iterdir() if path.stat().st_size == len(CONTENT)]


def test_a_wrong_sha256_is_found_too(site: Site) -> None:
    with pytest.raises(UserError, match=f"sha256 should start with 00000000 and is {SHA256}"):
        site.fetch(sha256_prefix="00000000")


def test_a_file_that_stays_as_it_was_when_its_replacement_is_wrong(site: Site) -> None:
    site.target.parent.mkdir()
    site.target.write_bytes(b"old")
    with pytest.raises(UserError):
        site.fetch(md5="0" * 32)
    assert list(site.target.parent.iterdir()) == [site.target]
    assert site.target.read_bytes() == b"old"


def test_without_a_network_one_more_try_is_enough_and_the_message_names_the_address_and_what_a_mirror_needs(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/images.gz"
        with pytest.raises(UserError, match=rf"{url}: Connection refused.*`mirror:` in params.yaml.*{WHERE}"):
            site.fetch(url)
    assert capsys.readouterr().err.count("trying again") == 1


def test_a_disk_without_room_is_known_before_the_download_and_what_came_is_kept(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.server.faults = [server_side.cut_after(HALF)] + [server_side.status(503)] * 3
    with pytest.raises(UserError):
        site.fetch()
    with monkeypatch.context() as nearly_full:
        nearly_full.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5_000))
        with pytest.raises(UserError, match=r"no room for .*images.gz.*24.4 KiB are still.*make 19.5 KiB more room"):
            site.fetch()
    site.fetch()
    assert site.server.ranges[-1] == f"bytes={HALF}-"
    assert site.is_fetched()


def test_a_disk_that_fills_up_midway_is_an_error_that_names_the_file(site: Site) -> None:
    site.server.faults = [server_side.status(404)]
    with pytest.raises(UserError):
        site.fetch()
    key = hashlib.sha256(site.server.url("images.gz").encode()).hexdigest()[:16]
    (site.cache / f"{key}-images.gz.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"no room for .*images.gz.part: the disk of .*cache is full"):
        site.fetch()
    assert not site.target.exists()


def test_a_disk_that_is_full_for_the_copy_leaves_no_part_of_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.fetch()
    site.target.unlink()

    def full(_: int) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"no room for images\.gz"):
            site.fetch()
    assert list(site.target.parent.iterdir()) == []
    site.fetch()
    assert len(site.server.asked) == 1


FETCH_IN_A_PROCESS = """
import sys
from pathlib import Path
from photofinish.data.fetching import Fetcher

url, cache, target, md5 = sys.argv[1:]
Fetcher(None, Path(cache)).fetch([url], Path(target), where="images.gz", md5=md5)
"""


def fetch_in_a_process(site: Site, target: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH_IN_A_PROCESS, site.server.url("images.gz"), str(site.cache), str(target), MD5],
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_part(site: Site, size_bytes: int) -> Path:
    deadline = time.monotonic() + 60
    while not (site.parts and site.parts[0].stat().st_size >= size_bytes):
        assert time.monotonic() < deadline, "the download never began"
        time.sleep(0.01)
    return site.parts[0]


def test_a_killed_download_goes_on_at_the_byte_where_it_ended(site: Site) -> None:
    site.server.faults = [server_side.slowly(500, 0.02)]
    with fetch_in_a_process(site, site.target) as process:
        part = wait_for_part(site, 2_000)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    reached = part.stat().st_size
    assert 2_000 <= reached < len(CONTENT)
    assert not site.target.exists()
    site.fetch()
    assert site.server.ranges == [None, f"bytes={reached}-"]
    assert site.is_fetched()


def test_a_download_killed_after_its_last_byte_asks_for_nothing_more(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr("photofinish.data.fetching._Expected.sha256_of", die)
        with pytest.raises(KeyboardInterrupt):
            site.fetch()
    assert site.parts[0].read_bytes() == CONTENT
    site.fetch()
    assert site.is_fetched()
    assert len(site.server.asked) == 1


def test_two_processes_that_want_one_file_fetch_it_once(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.server.faults = [server_side.slowly(1_000, 0.01)]
    with fetch_in_a_process(site, site.target.with_name("first")) as process:
        wait_for_part(site, 1_000)
        site.fetch()
        process.communicate()
    assert process.returncode == 0
    assert f"waiting: process {process.pid} is writing" in capsys.readouterr().err
    assert site.target.read_bytes() == site.target.with_name("first").read_bytes() == CONTENT
    assert len(site.server.asked) == 1


@pytest.mark.parametrize("place", [WHERE, "images.gz"])
def test_a_mirror_folder_has_the_file_at_its_place_or_by_its_name(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    (tmp_path / "mirror" / place).parent.mkdir(parents=True)
    (tmp_path / "mirror" / place).write_bytes(CONTENT)
    site.fetch(mirror=str(tmp_path / "mirror"))
    assert site.is_fetched()
    assert site.target.stat().st_nlink == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"images.gz  fetching {tmp_path}/mirror/{place} (50.0 kB)"


@pytest.mark.parametrize("mirror", ["mirror", "~/mirror"])
def test_a_mirror_folder_starts_at_the_projects_root_or_at_home(
    site: Site, tmp_path: Path, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "images.gz").write_bytes(CONTENT)
    monkeypatch.setenv("HOME" if mirror.startswith("~") else "DVC_ROOT", str(tmp_path))
    site.fetch(mirror=mirror)
    assert site.is_fetched()


def test_a_mirror_folder_without_the_file_is_an_error_that_names_both_places_and_no_reason_to_go_elsewhere(
    site: Site, tmp_path: Path
) -> None:
    mirror = tmp_path / "mirror"
    with pytest.raises(UserError, match=rf"no {mirror}/{WHERE} nor {mirror}/images.gz: .*`mirror:`"):
        site.fetch(mirror=str(mirror))
    assert site.server.asked == []


def test_a_wrong_file_in_a_mirror_folder_is_an_error_and_stays_there(site: Site, tmp_path: Path) -> None:
    (tmp_path / "images.gz").write_bytes(b"wrong")
    with pytest.raises(UserError, match=rf"{tmp_path}/images.gz is not the file it should be: its md5 should be {MD5}"):
        site.fetch(mirror=str(tmp_path))
    assert (tmp_path / "images.gz").read_bytes() == b"wrong"
    assert list(site.target.parent.iterdir()) == []


@pytest.mark.parametrize(("place", "asked"), [(WHERE, [f"m/{WHERE}"]), ("images.gz", [f"m/{WHERE}", "m/images.gz"])])
def test_a_mirror_address_has_the_file_at_its_place_or_by_its_name(site: Site, place: str, asked: list[str]) -> None:
    site.server.files = {f"m/{place}": CONTENT}
    site.fetch("http://x.invalid/", mirror=site.server.url("m/"))
    assert site.is_fetched()
    assert [path for path, _ in site.server.asked] == asked


def test_a_mirrors_name_and_password_come_from_netrc(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login anna password secret\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    site.server.files = {f"m/{WHERE}": CONTENT}
    site.fetch(mirror=site.server.url("m/"))
    assert site.server.authorizations == [f"Basic {b64encode(b'anna:secret').decode()}"]


def test_a_mirror_address_without_the_file_is_an_error_that_names_both_places(site: Site) -> None:
    with pytest.raises(UserError, match=rf"/m/{WHERE}: .*404.*/m/images.gz: .*404.*put {WHERE} there"):
        site.fetch(mirror=site.server.url("m"))
    assert "images.gz" not in [path for path, _ in site.server.asked]


def test_a_place_with_spaces_in_a_mirror_is_asked_for_as_an_address_must_be(site: Site) -> None:
    site.server.files = {"my%20data/images%231.gz": CONTENT}
    site.fetch("http://x.invalid/", mirror=site.server.address, where="my data/images#1.gz")
    assert site.is_fetched()


def test_an_unchecked_file_from_a_mirror_is_not_taken_for_the_original(site: Site) -> None:
    site.server.files["m/images.gz"] = b"another"
    site.fetch(mirror=site.server.url("m"), where="images.gz", md5=None)
    assert site.target.read_bytes() == b"another"
    site.fetch(where="images.gz", md5=None)
    assert site.is_fetched()
