"""Imports without the garbage collector, which is then as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from photofinish.processes import quick_imports


@pytest.fixture(autouse=True)
def garbage_collection_as_before() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def test_garbage_is_not_collected_inside_and_is_afterwards() -> None:
    with quick_imports():
        assert not gc.isenabled()
        with quick_imports():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_was_imported_is_not_looked_through_again() -> None:
    with quick_imports():
        imported = ["an object that the collector tracks"]
    assert gc.get_freeze_count() > 0
    assert not any(tracked is imported for tracked in gc.get_objects())


def test_it_ends_with_an_import_that_fails() -> None:
    with pytest.raises(ImportError), quick_imports():
        raise ImportError
    assert gc.isenabled()
