"""Downloads: D4RL files by name, fetched once into a cache; an interrupted download is resumed.

The cache may hold these files beside `x.hdf5`:

    x.hdf5.part        the bytes so far of an interrupted download
    x.hdf5.part.json   the file they belong to: address, length, ETag and Last-Modified
    x.hdf5.sha256      checksum of the finished download, as `sha256sum --check` reads it
    .x.hdf5.lock       locked while one process downloads; others wait, then use the finished file
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import http.client
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.formats import d4rl
from trajstitch.progress import Tell
from trajstitch.storage.archive import reading
from trajstitch.storage.atomic import write_json, write_text
from trajstitch.storage.lock import try_lock

_D4RL_URL = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
_ENV_ID = {"hopper": "Hopper-v4", "halfcheetah": "HalfCheetah-v4", "walker2d": "Walker2d-v4", "ant": "Ant-v4"}
_KINDS = ("random", "medium", "expert", "medium-replay", "medium-expert", "full-replay")
_VERSIONS = ("v0", "v1", "v2")
# Checksums by name. D4RL publishes none, so a download is checked by its length.
_SHA256: dict[str, str] = {}
_HORIZON = 1000  # steps; D4RL's own rule for its files that record no time-outs
_BLOCK = 1 << 20  # bytes read at once


@dataclass(frozen=True)
class Patience:
    """How long a download tolerates a bad connection."""

    tries: int = 5  # connections in total; the bytes so far are kept when all have failed
    wait: float = 0.5  # seconds before the second try, doubled before each further try
    stall: float = 30.0  # seconds within which `crawl` bytes must arrive
    crawl: int = 1 << 14  # bytes that must arrive within `stall` seconds


_PATIENCE = Patience()


def fetch_d4rl(name: str, tell: Tell) -> Dataset:
    """Load the D4RL data set of this name, such as hopper-medium-v2, from the cache or else from D4RL's server.

    The environment variable TRAJSTITCH_CACHE sets the cache folder, TRAJSTITCH_D4RL_URL a mirror of the server.
    """
    path = cached_path(name)
    fetch(f"{_server()}/{_place(name)}", path, tell, _SHA256.get(name))
    try:
        with reading(path):
            data = d4rl.read(path, usual_horizon=_HORIZON)
    except InputError as error:
        raise InputError(f"{error}; delete this file and load again to download it again") from error
    env_id = _ENV_ID[name.partition("-")[0]]
    return replace(data, info={**data.info, "env_id": env_id, "physics": "d4rl", "source": f"d4rl:{name}"})


def cached_path(name: str) -> Path:
    """Return where the cache keeps the D4RL data set of this name, downloaded or not."""
    return _cache() / "d4rl" / Path(_place(name)).name


def fetch(url: str, target: Path, tell: Tell, sha256: str | None = None, patience: Patience = _PATIENCE) -> None:
    """Make sure that `target` holds the file at `url`; an existing file is used without the network."""
    if not target.exists():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _locked(target, tell, patience):
                if not target.exists():  # another process may have downloaded it meanwhile
                    _download(url, target, tell, sha256, patience)
                    return
        except OSError as error:
            raise _disk_error(error, target) from error
    _check(target, sha256)


# -- names -----------------------------------------------------------------------------------------------------


def _place(name: str) -> str:
    """Return the path on the server of the data set of this name."""
    places = {}
    for env in _ENV_ID:
        for kind in _KINDS:
            under = kind.replace("-", "_")
            places[f"{env}-{kind}-v1"] = f"gym_mujoco_v1/{env}_{under}-v1.hdf5"
            places[f"{env}-{kind}-v2"] = f"gym_mujoco_v2/{env}_{under}-v2.hdf5"
            if kind == "medium-replay":  # in v0 it was called mixed, and walker2d was called walker
                places[f"{env}-{kind}-v0"] = f"gym_mujoco/{env.removesuffix('2d')}_mixed.hdf5"
            elif kind != "full-replay":
                places[f"{env}-{kind}-v0"] = f"gym_mujoco/{env}_{under}.hdf5"
    if name in places:
        return places[name]
    near = difflib.get_close_matches(name, places, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    raise InputError(
        f"d4rl:{name} is not known{meant}; known are ENV-KIND-VERSION with ENV one of {', '.join(_ENV_ID)}, "
        f"KIND one of {', '.join(_KINDS)} (the last not in v0), VERSION one of {', '.join(_VERSIONS)}"
    )


def _server() -> str:
    url = os.environ.get("TRAJSTITCH_D4RL_URL") or _D4RL_URL
    if not url.startswith(("http://", "https://")):
        raise InputError(f"TRAJSTITCH_D4RL_URL is {url!r}; it must start with http:// or https://")
    return url.rstrip("/")


def _cache() -> Path:
    return Path(os.environ.get("TRAJSTITCH_CACHE") or "~/.cache/trajstitch").expanduser()


# -- one download, in several tries ----------------------------------------------------------------------------


class _Broken(Exception):
    """A connection failed; `again` says whether another try may succeed."""

    def __init__(self, why: str, again: bool = True) -> None:
        super().__init__(why)
        self.again = again


@dataclass(frozen=True)
class _Version:
    """The version of a file on a server, from the headers of a response."""

    url: str
    length: int
    etag: str
    modified: str

    @property
    def condition(self) -> str:
        """Value for If-Range: a strong ETag, else the date; if both are empty, a download cannot be resumed."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified

    def goes_on(self, rest: _Version) -> bool:
        """Whether a response with the rest of a file belongs to this version; it need not repeat every header."""
        return self.length == rest.length and rest.etag in ("", self.etag) and rest.modified in ("", self.modified)


def _download(url: str, target: Path, tell: Tell, sha256: str | None, patience: Patience) -> None:
    part = Path(f"{target}.part")
    for attempt in range(1, patience.tries + 1):
        try:
            _receive(url, part, target, tell, patience)
            break
        except _Broken as broken:
            # If the first connection fails, we are offline: stop at once. A connection lost later may come back.
            if attempt == patience.tries or not (broken.again or attempt > 1):
                go_on = f" to continue after {_size(part):,} bytes" if _size(part) else ""
                raise InputError(
                    f"{url} could not be reached: {broken}; run it again{go_on}, or download the file by "
                    f"hand and put it at {target}"
                ) from broken
            time.sleep(patience.wait * 2 ** (attempt - 1))
    digest = _sha256(part)
    if sha256 and digest != sha256:
        _forget(part)
        raise InputError(
            f"{url} has the sha256 {digest}, not {sha256}; it was changed there or damaged on the way: "
            f"run it again, or put the right file at {target}"
        )
    write_text(_record(target), f"{digest}  {target.name}\n")
    part.replace(target)
    _forget(part)


def _receive(url: str, part: Path, target: Path, tell: Tell, patience: Patience) -> None:
    """Try once to download the whole file, or the rest of it if `part` is its beginning."""
    known = _read_version(part)
    done = _size(part) if known and known.url == url and known.condition else 0
    if known and done and done == known.length:
        return  # complete: an earlier process ended before it could rename the file
    headers = {"Accept-Encoding": "identity", "User-Agent": "trajstitch"}
    if known and done:
        headers |= {"Range": f"bytes={done}-", "If-Range": known.condition}
    with _open(url, headers, part, patience) as response:
        version = _version(url, response, done)
        if response.status == 206 and not (known and done and known.goes_on(version)):
            _forget(part)
            raise _Broken("the file there changed while it was downloaded")
        if response.status != 206:  # the whole file is sent: empty the old part before its version is recorded
            done = 0
            part.write_bytes(b"")
            write_json(_note(part), asdict(version))
        free = shutil.disk_usage(part.parent).free
        if free < version.length - done:
            raise OSError(errno.ENOSPC, f"{version.length - done:,} bytes are needed, {free:,} are free")
        with part.open("r+b" if done else "wb") as file:
            file.seek(done)
            for block in _blocks(response, patience):
                file.write(block)
                done += len(block)
                tell(done, version.length, f"downloading {target.name}")
            file.flush()
            os.fsync(file.fileno())
        if done != version.length:
            raise _Broken(f"the connection broke off after {done:,} of {version.length:,} bytes")


def _open(url: str, headers: dict[str, str], part: Path, patience: Patience) -> Any:
    try:
        request = urllib.request.Request(url, headers=headers)
        return urllib.request.urlopen(request, timeout=patience.stall)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the part is longer than the file on the server: start again
            _forget(part)
        passing = error.code in (408, 416, 429) or error.code >= 500
        raise _Broken(f"the server answered {error.code} {error.reason}", passing) from error
    except urllib.error.URLError as error:
        reason = error.reason
        why = (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
        raise _Broken(why, again=False) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(f"the connection broke off ({error})") from error
    except ValueError as error:
        raise _Broken(f"this is not a valid address ({error})", again=False) from error


def _version(url: str, response: Any, done: int) -> _Version:
    """Return the file's version from the headers of a response."""
    header = response.headers
    if header.get_content_type() == "text/html":
        raise _Broken("a web page came instead of the file (does this network want a login?)", again=False)
    length = header.get("Content-Length", "")
    if response.status == 206:
        span, _, length = header.get("Content-Range", "").partition("/")
        if not span.startswith(f"bytes {done}-"):
            length = "0"  # not the range that was asked for: no version has length 0
    if not length.isdigit():
        raise _Broken("the server does not say how long the file is", again=False)
    return _Version(url, int(length), header.get("ETag", ""), header.get("Last-Modified", ""))


def _blocks(response: Any, patience: Patience) -> Iterator[bytes]:
    """Yield the bytes as they arrive; raise _Broken if the connection breaks off or is too slow."""
    since, come = time.monotonic(), 0
    while True:
        try:
            block = response.read1(_BLOCK)
        except (OSError, http.client.HTTPException) as error:
            raise _Broken(f"the connection broke off ({error})") from error
        if not block:
            return
        yield block
        come += len(block)
        if come >= patience.crawl:
            since, come = time.monotonic(), 0
        elif time.monotonic() - since > patience.stall:
            raise _Broken(f"only {come:,} bytes came in {patience.stall:g} seconds")


# -- the files beside a cached file -----------------------------------------------------------------------------


def _record(target: Path) -> Path:
    return Path(f"{target}.sha256")


def _note(part: Path) -> Path:
    return Path(f"{part}.json")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _read_version(part: Path) -> _Version | None:
    try:
        return _Version(**json.loads(_note(part).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None  # no part, or one of unknown origin, which will be overwritten


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(target: Path, sha256: str | None) -> None:
    """Check that the cached file is what was downloaded; a file put there by hand has no checksum and passes."""
    record = _record(target)
    wanted = sha256 or (record.read_text().partition(" ")[0] if record.exists() else None)
    if wanted and _sha256(target) != wanted:
        raise InputError(
            f"{target} is damaged: its sha256 is not {wanted}; delete it and {record.name} and load again to "
            "download it again"
        )


def _disk_error(error: OSError, target: Path) -> InputError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return InputError(
            f"{target}: the disk is full ({error.strerror}); free some space and run it again, or set "
            "TRAJSTITCH_CACHE to a folder on another disk"
        )
    return InputError(
        f"{target}: the cache cannot be written ({error.strerror or error}); set TRAJSTITCH_CACHE to another "
        "folder"
    )


# -- one process at a time -------------------------------------------------------------------------------------


@contextmanager
def _locked(target: Path, tell: Tell, patience: Patience) -> Iterator[None]:
    """Hold the file's lock; the operating system releases it whenever the process ends."""
    part = Path(f"{target}.part")
    with target.with_name(f".{target.name}.lock").open("ab") as file:
        # Wait as long as all tries of the other process may take; start again whenever bytes arrive.
        limit = patience.tries * patience.stall + patience.wait * 2**patience.tries
        since, size = time.monotonic(), _size(part)
        while not try_lock(file):
            known = _read_version(part)
            tell(size, known.length if known else 0, f"another process downloads {target.name}")
            time.sleep(0.1)
            if _size(part) != size:
                since, size = time.monotonic(), _size(part)
            elif time.monotonic() - since > limit:
                raise InputError(
                    f"{target}: another process began to download it and makes no progress; end that process "
                    "and run this again"
                )
        yield
