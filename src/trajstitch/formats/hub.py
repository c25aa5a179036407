"""Hugging Face's hub: `hf:NAME` is a data set there, downloaded once into the hub client's own cache.

A repository holds a LeRobotDataset, or one file or folder whose ending names a format. Videos are left there: they
are not needed to read the data, and may be most of them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trajstitch.errors import InputError
from trajstitch.storage.atomic import OTHER_NAME

PREFIX = "hf:"


def fetch(name: str, endings: tuple[str, ...]) -> Path:
    """Download a data set, unless it is in the cache, and return the path of what is to be read."""
    repo, _, revision = name.removeprefix(PREFIX).partition("@")
    hub = _import_hub()
    with _told(repo):
        root = hub.snapshot_download(
            repo,
            repo_type="dataset",
            revision=revision or None,
            cache_dir=os.environ.get("HF_HUB_CACHE"),
            endpoint=os.environ.get("HF_ENDPOINT"),
            ignore_patterns=["videos/*", "images/*"],
        )
    return _data_in(Path(root), repo, endings)


def check_name(name: str) -> str:
    """Return the name of a repository without hf:; InputError if it is none."""
    repo = name.removeprefix(PREFIX)
    if not name.startswith(PREFIX) or repo.count("/") != 1 or not all(repo.split("/")):
        raise InputError(f"{name}: write hf:USER/NAME, such as hf:me/better-data")
    _import_hub()
    return repo


def upload(
    files: Mapping[str, Path | bytes], name: str, *, private: bool, overwrite: bool, tag: str | None = None
) -> str:
    """Put files (name in the repository: path or content) there in one commit, and return its address.

    Arguments:
        files: what to upload.
        name: hf:USER/NAME.
        private: whether a new repository is seen by its owner only.
        overwrite: whether a repository that exists may be changed.
        tag: a tag for the commit; LeRobot looks for its version.
    """
    repo = check_name(name)
    hub = _import_hub()
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="trajstitch")
    with _told(repo):
        if api.repo_exists(repo, repo_type="dataset") and not overwrite:
            raise InputError(f"{name} exists already; {OTHER_NAME}")
        api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
        operations = [
            hub.CommitOperationAdd(path, content if isinstance(content, bytes) else str(content))
            for path, content in files.items()
        ]
        done = api.create_commit(
            repo, operations, commit_message="Data set written by trajstitch", repo_type="dataset"
        )
        if tag:
            api.create_tag(repo, tag=tag, repo_type="dataset", exist_ok=True)
    return str(done.commit_url)


def _data_in(root: Path, repo: str, endings: tuple[str, ...]) -> Path:
    if (root / "meta" / "info.json").exists():
        return root
    found = [path for path in sorted(root.rglob("*")) if path.suffix in endings]
    if len(found) != 1:
        names = ", ".join(path.relative_to(root).as_posix() for path in found) or "none"
        raise InputError(
            f"{PREFIX}{repo} should hold a LeRobotDataset or one data set ({', '.join(endings)}), but there are: "
            f"{names}; download it and give the path of one"
        )
    return found[0]


def _import_hub() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise InputError("hf: needs huggingface_hub; run pip install 'trajstitch[hub]'") from error


@contextmanager
def _told(repo: str) -> Iterator[None]:
    """Turn the hub client's errors into an InputError that says what to do."""
    errors = importlib.import_module("huggingface_hub.errors")
    try:
        yield
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"{PREFIX}{repo}: there is no such data set on the hub, or you may not see it; check the name, or log "
            "in with hf auth login"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"{PREFIX}{repo} has no such revision; leave @REVISION out") from error
    except errors.HfHubHTTPError as error:
        why = " ".join(str(error).split())
        raise InputError(f"{PREFIX}{repo}: the hub refused it ({why[:200]}); log in with hf auth login") from error
    except errors.LocalEntryNotFoundError as error:
        raise InputError(
            f"{PREFIX}{repo}: the hub cannot be reached and the data are not in its cache; check the network"
        ) from error
    except (errors.HFValidationError, errors.LocalTokenNotFoundError) as error:
        raise InputError(f"{PREFIX}{repo}: {' '.join(str(error).split())}") from error
    except (errors.HfHubHTTPError.__mro__[1], OSError) as error:  # of whatever library the client talks through
        raise InputError(f"{PREFIX}{repo}: the hub cannot be reached ({error}); check the network") from error
