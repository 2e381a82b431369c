"""Downloads of torchvision's data sets by our own means: resumed, checked, from a mirror, and kept in their folder.

torchvision's classes decide which files there are and where they go; its functions that fetch and unpack are replaced
for the time being, wherever a module of `torchvision.datasets` has imported them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from urllib.error import URLError

from photofinish.data.archives import unpack
from photofinish.data.fetching import CannotFetchError, Fetcher
from photofinish.errors import UserError

_BROWSER_ONLY = ("drive.google.com", "docs.google.com")


@contextmanager
def own_downloads(folder: Path, fetcher: Fetcher) -> Iterator[None]:
    """While it lasts, what torchvision downloads into `folder` comes through `fetcher`; archives go once unpacked."""
    from torchvision.datasets import utils

    downloads = _Downloads(folder.resolve(), fetcher)
    replacements = {"download_url": downloads.fetch, "extract_archive": downloads.extract}
    originals = {name: getattr(utils, name) for name in replacements}
    modules = [module for name, module in sys.modules.items() if name.startswith("torchvision.datasets.")]
    replaced = [(module, name) for module in modules for name in originals if hasattr(module, name)]
    for module, name in replaced:
        setattr(module, name, replacements[name])
    try:
        yield
    except (RuntimeError, URLError) as error:  # torchvision puts several addresses' failures into one RuntimeError
        raise downloads.explained(error) from error
    finally:
        for module, name in replaced:
            setattr(module, name, originals[name])
    for archive in downloads.unpacked:
        archive.unlink(missing_ok=True)


class _Downloads:
    def __init__(self, folder: Path, fetcher: Fetcher) -> None:
        self._folder, self._fetcher = folder, fetcher
        self._failures: list[UserError] = []
        self.unpacked: set[Path] = set()

    def fetch(
        self,
        url: str,
        root: str | Path,
        filename: str | Path | None = None,
        md5: str | None = None,
        max_redirect_hops: int = 3,  # noqa: ARG002  # part of torchvision's signature
    ) -> None:
        target = self._within(Path(root) / (filename or PurePosixPath(url).name))
        where = target.relative_to(self._folder).as_posix()
        try:
            self._fetch(url, target, where, md5)
        except UserError as error:
            self._failures.append(error)
            raise URLError(str(error)) from error  # at which torchvision tries its next address

    def _fetch(self, url: str, target: Path, where: str, md5: str | None) -> None:
        if self._fetcher.mirror is None and any(f"//{host}/" in url for host in _BROWSER_ONLY):
            raise UserError(
                f"{where} is on Google Drive, which hands it out to browsers only: save {url} as <folder>/{where}, "
                f"and set mirror: <folder> in params.yaml"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        self._fetcher.fetch(url, target, where=where, md5=md5)

    def extract(
        self, from_path: str | Path, to_path: str | Path | None = None, remove_finished: bool = False
    ) -> str | Path:
        archive = self._within(Path(from_path))
        folder = self._within(Path(to_path) if to_path is not None else archive.parent)
        unpack(archive, folder)
        self.unpacked.add(archive)
        if remove_finished:
            archive.unlink()
        return folder if isinstance(from_path, Path) else str(folder)

    def _within(self, path: Path) -> Path:
        path = path.resolve()
        if not path.is_relative_to(self._folder):
            raise UserError(f"{path} is outside {self._folder}, where the download belongs")
        return path

    def explained(self, error: Exception) -> UserError:
        if not self._failures:
            return UserError(f"the files aren't as torchvision expects them: {error}")
        *_, last = self._failures
        fetched = [failure for failure in self._failures if isinstance(failure, CannotFetchError)]
        if isinstance(last, CannotFetchError) and len(fetched) == len(self._failures):
            faults = dict.fromkeys(fault for failure in fetched for fault in failure.faults)
            return CannotFetchError(list(faults), last.advice)
        return type(last)("\n".join(dict.fromkeys(str(failure) for failure in self._failures)))
