"""A run's files in MLflow: each is sent once, and again only if it changed or was deleted there."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

from mlflow.entities import Run

from photofinish.files import sha256_of_bytes, sha256_of_file
from photofinish.tracking.documents import TAG_MIRRORED, Artifact
from photofinish.tracking.store import Store


def mirror_artifacts(store: Store, run: Run, artifacts: list[Artifact]) -> None:
    """Folder by folder: the tag that names a folder's content comes last, so what was cut off is sent anew."""
    run_id = str(run.info.run_id)
    for folder, group in groupby(sorted(artifacts, key=_folder), key=_folder):
        paths = [path for path, _ in group]
        tag, content = f"{TAG_MIRRORED}.{folder}", _digest(paths)
        is_sent = run.data.tags.get(tag) == content
        for path in paths:
            if not is_sent or not is_there(store, run_id, (path, folder)):
                store.client.log_artifact(run_id, str(path), folder)
        if not is_sent:
            store.client.set_tag(run_id, tag, content)


def is_there(store: Store, run_id: str, artifact: Artifact) -> bool:
    """Artifacts in a folder of this machine may have been deleted; a server is trusted to keep what it got."""
    path, folder = artifact
    if store.local_artifacts is None:
        return True
    return (store.local_artifacts / run_id / "artifacts" / folder / path.name).is_file()


def _folder(artifact: Artifact) -> str:
    return artifact[1]


def _digest(paths: list[Path]) -> str:
    return sha256_of_bytes(json.dumps([[path.name, sha256_of_file(path)] for path in paths]).encode())
