"""All of an archive comes into its folder, or nothing comes anywhere and an error says why."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import shutil
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from conftest import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from photofinish.data import archives
from photofinish.data.archives import unpack
from photofinish.errors import UserError

FILES = {"a.txt": b"first", "deep/er/b.bin": bytes(range(256)) * 20, "deep/empty": b""}
TARS = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.bz2": "w:bz2", ".tbz2": "w:bz2", ".tar.xz": "w:xz"}
COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
REAL_FILE = ROOT.parent / "shared" / "datasets" / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"


def write_tar(path: Path, files: dict[str, bytes], *special: tarfile.TarInfo, mode: str | None = None) -> Path:
    mode = mode or next(mode for suffix, mode in TARS.items() if path.name.endswith(suffix))
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o4777
            tar.addfile(info, io.BytesIO(content))
        for info in special:
            tar.addfile(info)
    return path


def write_zip(path: Path, files: dict[str, bytes], *, mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            opened.writestr(info, content)
    return path


def write_archive(path: Path, files: dict[str, bytes] = FILES) -> Path:
    return write_zip(path, files) if path.suffix == ".zip" else write_tar(path, files)


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(archive: Path, reason: str) -> None:
    """Nothing of it is anywhere, and the message names it."""
    around = archive.parent
    before = {path: path.read_bytes() for path in around.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=f"{archive.name}.*{reason}"):
        unpack(archive, around / "unpacked")
    assert {path: path.read_bytes() for path in around.rglob("*") if path.is_file()} == before
    assert not (around / "unpacked").exists()
    assert not list(around.glob(".*"))


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def sealed(header: bytearray) -> bytes:
    """A tar's header with the checksum that belongs to it."""
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize("suffix", [*TARS, ".zip"])
def test_every_kind_of_archive_is_unpacked_whole_with_plain_permissions(tmp_path: Path, suffix: str) -> None:
    unpack(write_archive(tmp_path / f"data-1.0{suffix}"), tmp_path / "new" / "unpacked")
    folder = tmp_path / "new" / "unpacked"
    assert content_of(folder) == FILES
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert set(modes.values()) == {0o755, 0o644}
    assert all(mode == (0o755 if path.is_dir() else 0o644) for path, mode in modes.items())
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_file_alone_loses_its_last_suffix(tmp_path: Path, suffix: str) -> None:
    archive = tmp_path / f"usps.t{suffix}"
    archive.write_bytes(COMPRESS[suffix](b"digits"))
    unpack(archive, tmp_path / "unpacked")
    assert content_of(tmp_path / "unpacked") == {"usps.t": b"digits"}


def test_a_compressed_tar_that_is_named_without_its_compression_is_unpacked(tmp_path: Path) -> None:
    unpack(write_tar(tmp_path / "images.tar", FILES, mode="w:gz"), tmp_path / "unpacked")
    assert content_of(tmp_path / "unpacked") == FILES


def test_a_real_download_is_unpacked(tmp_path: Path) -> None:
    if not REAL_FILE.is_file():
        pytest.skip(f"{REAL_FILE} is not there")
    unpack(REAL_FILE, tmp_path / "raw")
    magic, count = struct.unpack(">II", (tmp_path / "raw" / "t10k-labels-idx1-ubyte").read_bytes()[:8])
    assert (magic, count) == (2049, 10_000)


def test_what_is_there_stays_and_what_has_the_same_name_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    (folder / "deep").mkdir(parents=True)
    (folder / "kept").write_bytes(b"kept")
    (folder / "deep" / "empty").write_bytes(b"old")
    unpack(write_archive(tmp_path / "data.zip"), folder)
    assert content_of(folder) == {**FILES, "kept": b"kept"}
    assert stat.S_IMODE((folder / "deep" / "er").stat().st_mode) == 0o755


def test_the_last_of_two_members_with_one_name_counts_and_case_makes_a_difference(tmp_path: Path) -> None:
    archive = tmp_path / "data.tar"
    write_tar(archive, {"a": b"first", "A": b"upper case"})
    with tarfile.open(archive, "a") as tar:
        info = tarfile.TarInfo("./a")
        info.size = 6
        tar.addfile(info, io.BytesIO(b"second"))
    unpack(archive, tmp_path / "unpacked")
    assert content_of(tmp_path / "unpacked") == {"a": b"second", "A": b"upper case"}


def test_folders_of_an_archive_are_made_also_when_empty(tmp_path: Path) -> None:
    top, empty = special("./", tarfile.DIRTYPE), special("train/cats", tarfile.DIRTYPE)
    top.mode = empty.mode = 0
    unpack(write_tar(tmp_path / "data.tar.gz", {}, top, empty), tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "train" / "cats").is_dir()


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/evil", "//evil", "..", "a\\..\\..\\evil", "C:\\evil", "\\evil"]
)
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".zip"])
def test_a_member_that_would_leave_the_folder_is_refused(tmp_path: Path, name: str, suffix: str) -> None:
    archive = write_archive(tmp_path / f"data{suffix}", {"good": b"good", name: b"evil"})
    told = "evil.*" if "evil" in name else r"\.\.'"
    assert_refused(archive, f"its member '.*{told} would come to lie outside its folder$")


LINKS_AND_DEVICES = {
    "symlink out": special("link", tarfile.SYMTYPE, "/etc"),
    "symlink in": special("link", tarfile.SYMTYPE, "good"),
    "hard link": special("link", tarfile.LNKTYPE, "good"),
    "hard link out": special("link", tarfile.LNKTYPE, "../../etc/passwd"),
    "character device": special("device", tarfile.CHRTYPE),
    "block device": special("device", tarfile.BLKTYPE),
    "fifo": special("fifo", tarfile.FIFOTYPE),
    "unknown": special("odd", b"Z"),
}


@pytest.mark.parametrize("member", LINKS_AND_DEVICES.values(), ids=LINKS_AND_DEVICES.keys())
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    archive = write_tar(tmp_path / "data.tar.gz", {"good": b"good"}, member)
    assert_refused(archive, f"member '{member.name}' is a link, a device")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_in_a_zip_are_refused(tmp_path: Path, kind: int) -> None:
    assert_refused(write_zip(tmp_path / "data.zip", {"link": b"/etc/passwd"}, mode=kind | 0o777), "member 'link' is a")


def test_a_file_is_not_written_through_a_link_that_lies_in_the_folder_already(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "unpacked"
    outside.mkdir()
    folder.mkdir()
    (folder / "deep").symlink_to(outside)
    with pytest.raises(UserError, match=r"data\.tar.*deep is in the way"):
        unpack(write_archive(tmp_path / "data.tar"), folder)
    assert list(outside.iterdir()) == []
    assert content_of(folder) == {}


@pytest.mark.parametrize("there", ["a.txt/is a folder", "deep"])
def test_a_folder_where_a_file_belongs_or_the_other_way_round_is_an_error_before_anything_moves(
    tmp_path: Path, there: str
) -> None:
    folder = tmp_path / "unpacked"
    (folder / there).parent.mkdir(parents=True)
    (folder / there).write_bytes(b"mine")
    with pytest.raises(UserError, match="is in the way: move it"):
        unpack(write_archive(tmp_path / "data.zip"), folder)
    assert content_of(folder) == {there: b"mine"}


@pytest.mark.parametrize("suffix", [".tar", ".zip"])
@pytest.mark.parametrize(("files", "told"), [({"a": b"", "a/b": b""}, "'a/b'"), ({"x" * 300: b""}, "'x+'")])
def test_a_name_that_no_file_can_have_is_refused(
    tmp_path: Path, suffix: str, files: dict[str, bytes], told: str
) -> None:
    archive = write_archive(tmp_path / f"data{suffix}", files)
    assert_refused(archive, f" is refused, and nothing of it was unpacked: its member {told} can't be written: ")


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_ALLOWANCE_BYTES", 10_000)
    monkeypatch.setattr(archives, "_CHUNK_BYTES", 4096)


ZEROS = bytes(4_000_000)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.bz2", ".tar.xz", ".zip", ".gz", ".bz2", ".xz"])
def test_a_bomb_is_refused_by_what_it_really_unpacks_to_long_before_it_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    archive = tmp_path / f"bomb{suffix}"
    if suffix in COMPRESS:
        archive.write_bytes(COMPRESS[suffix](ZEROS))
    else:
        write_archive(archive, {"zeros": ZEROS})
    limit_bytes = archive.stat().st_size * 200 + 10_000
    assert limit_bytes < len(ZEROS)
    written_bytes: list[int] = []

    def measured(size_bytes: int) -> str:
        written_bytes.extend(path.stat().st_size for path in (tmp_path / ".unpacked.unpacking").iterdir())
        return str(size_bytes)

    monkeypatch.setattr(archives, "decimal", measured)  # of the message, while what was unpacked is still there
    assert_refused(archive, r"would unpack to more than \d+, as no data set does$")
    assert sum(written_bytes) <= 2 * limit_bytes  # the message names two sizes


@pytest.mark.usefixtures("small_limits")
def test_a_bomb_that_says_it_is_small_is_damaged_or_refused(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "bomb.zip", {"zeros": ZEROS})
    archive.write_bytes(archive.read_bytes().replace(struct.pack("<I", len(ZEROS)), struct.pack("<I", 100)))
    assert_refused(archive, "damaged")


@pytest.mark.usefixtures("small_limits")
def test_a_bomb_of_many_members_over_the_same_bytes_is_refused(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "bomb.zip", {"zeros": ZEROS[:400_000]})
    with zipfile.ZipFile(archive, "a") as opened:
        for number in range(40):
            info = opened.getinfo("zeros")
            copy = zipfile.ZipInfo("zeros")
            for name in ("CRC", "compress_size", "file_size", "header_offset", "compress_type", "orig_filename"):
                setattr(copy, name, getattr(info, name))
            copy.comment = b"%d" % number
            opened.filelist.append(copy)
            opened._didModify = True  # type: ignore[attr-defined]
    assert_refused(archive, "would unpack to more than")


@pytest.mark.usefixtures("small_limits")
def test_a_bomb_of_holes_is_refused(tmp_path: Path) -> None:
    """A sparse member says it is large, and has few bytes of its own."""
    header = bytearray(tarfile.TarInfo("holes").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[483:495] = b"%011o\0" % len(ZEROS)
    (tmp_path / "data.tar").write_bytes(sealed(header) + bytes(1024))
    assert_refused(tmp_path / "data.tar", "'holes' is a link, a device or of an unknown kind")


@pytest.mark.usefixtures("small_limits")
def test_a_bomb_behind_the_end_of_a_tar_is_refused(tmp_path: Path) -> None:
    plain = write_tar(tmp_path / "data.tar", FILES)
    archive = tmp_path / "data.tar.gz"
    archive.write_bytes(gzip.compress(plain.read_bytes() + ZEROS))
    assert_refused(archive, "would unpack to more than")


@pytest.mark.usefixtures("small_limits")
def test_many_small_members_that_are_packed_well_are_no_bomb(tmp_path: Path) -> None:
    files = {"zeros": bytes(20_000)} | {str(number): b"" for number in range(40)}
    unpack(write_tar(tmp_path / "data.tar.gz", files), tmp_path / "unpacked")
    assert content_of(tmp_path / "unpacked") == files


def test_a_header_too_large_for_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_LARGEST_HEADER_BYTES", 10_000)
    assert_refused(write_tar(tmp_path / "data.tar.gz", {"x" * 20_000: b""}), "a header of 20.* kB")


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_MOST_MEMBERS", 10)
    told = "its member '10' is one too many: at most 10 are unpacked$"
    assert_refused(write_tar(tmp_path / "data.tar", {str(number): b"" for number in range(11)}), told)
    unpack(write_tar(tmp_path / "fewer.tar", {str(number): b"" for number in range(10)}), tmp_path / "fewer")


def test_more_than_the_disk_has_room_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    assert_refused(write_archive(tmp_path / "data.zip"), "make room")


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    archive = write_archive(tmp_path / "data.zip")
    with monkeypatch.context() as full_disk:
        full_disk.setattr(shutil, "copyfileobj", full)
        with pytest.raises(UserError, match=f"no room for what is in {archive}"):
            unpack(archive, tmp_path / "unpacked")
    assert list(tmp_path.iterdir()) == [archive]


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "data.zip", {"secret": b"secret"})
    data = bytearray(archive.read_bytes())
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + place] |= 1
    archive.write_bytes(data)
    assert_refused(archive, "member 'secret' is encrypted")


def test_a_compression_that_nobody_here_knows_is_an_error(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "data.zip", {"a": b"a"})
    data = bytearray(archive.read_bytes())
    for signature, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        data[data.index(signature) + place] = 9
    archive.write_bytes(data)
    assert_refused(archive, "compression")


def test_a_tar_whose_header_leads_backwards_does_not_go_round_in_circles(tmp_path: Path) -> None:
    header = bytearray(tarfile.TarInfo("a").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 10 + b"\xfc\x00"
    (tmp_path / "data.tar").write_bytes(sealed(header) * 2 + bytes(1024))
    assert_refused(tmp_path / "data.tar", "negative size")


def test_a_sparse_member_whose_map_leads_backwards_is_refused(tmp_path: Path) -> None:
    header = bytearray(tarfile.TarInfo("holes").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    for place, value in ((124, 512), (386, 0), (398, -512), (410, 0), (422, 100), (483, 100)):
        encoded = b"\xff" + value.to_bytes(11, "big", signed=True) if value < 0 else b"%011o\0" % value
        header[place : place + 12] = encoded
    (tmp_path / "data.tar").write_bytes(sealed(header) + bytes(512 + 1024))
    assert_refused(tmp_path / "data.tar", "'holes' is a link, a device or of an unknown kind")


@pytest.mark.parametrize("suffix", [*TARS, ".zip", ".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("content", [b"", b"<html>Not Found</html>", bytes(5000)])
def test_what_is_no_archive_is_an_error(tmp_path: Path, suffix: str, content: bytes) -> None:
    archive = tmp_path / f"data{suffix}"
    archive.write_bytes(content)
    is_of_nothing = (suffix, content) in ((".tar", bytes(5000)), (".gz", b""))
    why = "it is empty" if is_of_nothing else r".*\w.*"
    assert_refused(archive, rf" is damaged, cut short or not what its name says \({why}\): delete data\..* its folder$")


@pytest.mark.parametrize("name", ["data", "data.rar", "data.tar.zst", ".gz"])
def test_a_name_that_tells_no_kind_is_an_error_that_lists_them(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match=r"its name ends in none of \.zip, \.tar, .*\.xz"):
        unpack(tmp_path / name, tmp_path / "unpacked")


def compressed_alone(path: Path) -> Path:
    path.write_bytes(COMPRESS[path.suffix](FILES["deep/er/b.bin"]))
    return path


MAKERS: dict[str, Callable[[Path], Path]] = {
    **dict.fromkeys((".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip"), write_archive),
    **dict.fromkeys((".gz", ".bz2", ".xz"), compressed_alone),
}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(suffix=st.sampled_from(sorted(MAKERS)), share=st.floats(0, 1, exclude_max=True))
def test_an_archive_cut_anywhere_is_an_error_and_leaves_nothing(tmp_path: Path, suffix: str, share: float) -> None:
    archive = MAKERS[suffix](tmp_path / f"data{suffix}")
    data = archive.read_bytes()
    end = len(data.rstrip(b"\0")) if suffix == ".tar" else len(data)  # one of a tar's many last zeros is no loss
    archive.write_bytes(data[: int(share * end)])
    if share * end >= 1:
        assert_refused(archive, "damaged, cut short")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(suffix=st.sampled_from(sorted(MAKERS)), changes=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255))))
def test_whatever_is_damaged_it_is_unpacked_or_refused_in_words(
    tmp_path: Path, suffix: str, changes: list[tuple[float, int]]
) -> None:
    archive = MAKERS[suffix](tmp_path / f"data{suffix}")
    data = bytearray(archive.read_bytes())
    for share, change in changes:
        data[int(share * (len(data) - 1))] ^= change
    archive.write_bytes(data)
    folder = tmp_path / "unpacked"
    told = ""
    try:
        unpack(archive, folder)
        shutil.rmtree(folder)
    except UserError as error:
        told = str(error)
    assert "None" not in told
    assert list(tmp_path.iterdir()) == [archive]
    archive.unlink()


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".unpacked.unpacking").mkdir()
    (tmp_path / ".unpacked.unpacking" / "left").write_bytes(b"half")
    unpack(write_archive(tmp_path / "data.zip"), tmp_path / "unpacked")
    assert content_of(tmp_path / "unpacked") == FILES
    assert not (tmp_path / ".unpacked.unpacking").exists()


def test_an_interrupted_unpacking_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    archive = write_archive(tmp_path / "data.tar.gz")
    monkeypatch.setattr(archives, "_merge", interrupt)
    with pytest.raises(KeyboardInterrupt):
        unpack(archive, tmp_path / "unpacked")
    assert list(tmp_path.iterdir()) == [archive]
