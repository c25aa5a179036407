"""Downloads from a server of our own that can break off, lie, change its file and ignore what it is asked."""

from __future__ import annotations

import hashlib
import http.server
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import trajstitch as ts
from trajstitch.errors import InputError
from trajstitch.formats import d4rl
from trajstitch.formats import d4rl_download as download
from trajstitch.formats.d4rl_download import Patience, fetch, fetch_d4rl
from trajstitch.progress import silent

BODY = np.random.default_rng(0).bytes(200_000)
QUICK = Patience(tries=3, wait=0.01, stall=5.0)
NAME = "hopper-medium-v2"
PLACE = "/gym_mujoco_v2/hopper_medium-v2.hdf5"


@dataclass
class Server:
    """What is served, and how badly; `asked` lists (path, Range) of every request."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: {"/file": BODY})
    etag: str = '"one"'
    modified: str = "Mon, 06 Jan 2020 00:00:00 GMT"
    break_after: list[int] = field(default_factory=list)  # bytes of the next answers' bodies, then whole ones
    fail: list[int] = field(default_factory=list)  # status codes of the next answers
    ranges: bool = True  # serve ranges at all
    heed_condition: bool = True  # look at If-Range
    kind: str = "application/octet-stream"
    length: int | None = 0  # added to the true Content-Length; None: do not tell
    terse: bool = False  # leave Last-Modified out of a range's headers, as a server may
    shift: int = 0  # where a range begins, off what was asked
    pause: float = 0.0  # seconds before each hundredth of a body
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    @property
    def ranges_asked(self) -> list[str | None]:
        return [span for _, span in self.asked]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        state: Server = self.server.state  # type: ignore[attr-defined]
        span = self.headers.get("Range")
        state.asked.append((self.path, span))
        if state.fail:
            return self.send_error(state.fail.pop(0))
        if self.path not in state.files:
            return self.send_error(404)
        body, begin = state.files[self.path], 0
        same = self.headers.get("If-Range") in (state.etag or "none", state.modified)
        if span and state.ranges and (same or not state.heed_condition):
            begin = int(span.removeprefix("bytes=").rstrip("-"))
            if begin >= len(body):
                return self.send_error(416)
            begin += state.shift
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        if state.length is not None:
            self.send_header("Content-Length", str(len(body) - begin + state.length))
        if state.etag:
            self.send_header("ETag", state.etag)
        if state.modified and not (begin and state.terse):
            self.send_header("Last-Modified", state.modified)
        self.send_header("Content-Type", state.kind)
        self.end_headers()
        body = body[begin:]
        if state.break_after:
            body = body[: state.break_after.pop(0)]
        piece = max(1, len(body) // 100) if state.pause else max(1, len(body))
        for a in range(0, len(body), piece):
            time.sleep(state.pause)
            self.wfile.write(body[a : a + piece])

    def log_message(self, *args: object) -> None:
        pass


class QuietServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: object) -> None:
        pass  # a client that gave up is what some tests are about


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with QuietServer(("127.0.0.1", 0), Handler) as real:
        state = Server(url=f"http://127.0.0.1:{real.server_port}")
        real.state = state  # type: ignore[attr-defined]
        thread = threading.Thread(target=real.serve_forever, args=(0.01,))
        thread.start()
        yield state
        real.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "file.bin"


def left(target: Path) -> set[str]:
    """What lies in the cache, but for the lock."""
    return {path.name for path in target.parent.iterdir()} - {f".{target.name}.lock"}


def get(server: Server, target: Path, patience: Patience = QUICK, sha256: str | None = None) -> None:
    fetch(f"{server.url}/file", target, silent, sha256, patience)


# -- a download that goes well ---------------------------------------------------------------------------------


def test_it_is_downloaded_once(server: Server, target: Path) -> None:
    get(server, target)
    assert target.read_bytes() == BODY
    get(server, target)
    assert server.asked == [("/file", None)]


def test_nothing_but_the_file_and_its_checksum_is_left(server: Server, target: Path) -> None:
    get(server, target)
    assert left(target) == {"file.bin", "file.bin.sha256"}
    record = Path(f"{target}.sha256").read_text()
    assert record == f"{hashlib.sha256(BODY).hexdigest()}  file.bin\n"


def test_progress_is_told_to_the_last_byte(server: Server, target: Path) -> None:
    told: list[tuple[int, int, str]] = []
    fetch(f"{server.url}/file", target, lambda *what: told.append(what), None, QUICK)
    done = [d for d, _, _ in told]
    assert done == sorted(done)
    assert told[-1] == (len(BODY), len(BODY), "downloading file.bin")


# -- broken off ------------------------------------------------------------------------------------------------


def test_a_broken_download_goes_on_where_it_stopped(server: Server, target: Path) -> None:
    server.break_after = [70_000, 50_000]
    get(server, target)
    assert target.read_bytes() == BODY
    assert server.ranges_asked == [None, "bytes=70000-", "bytes=120000-"]


def test_it_goes_on_in_a_later_run(server: Server, target: Path) -> None:
    server.break_after = [70_000]
    with pytest.raises(InputError, match=r"run it again to continue after 70,000 bytes"):
        get(server, target, Patience(tries=1))
    assert not target.exists()
    get(server, target)
    assert target.read_bytes() == BODY
    assert server.ranges_asked == [None, "bytes=70000-"]


def test_tries_are_bounded_and_the_part_is_kept(server: Server, target: Path) -> None:
    server.break_after = [1000] * 100
    with pytest.raises(InputError, match=r"after 3,000 of 200,000 bytes.*put it at .*file\.bin"):
        get(server, target)
    assert len(server.asked) == QUICK.tries
    assert left(target) == {"file.bin.part", "file.bin.part.json"}
    assert Path(f"{target}.part").read_bytes() == BODY[:3000]


def test_waits_double(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(download.time, "sleep", slept.append)
    server.fail = [500] * 9
    with pytest.raises(InputError):
        get(server, target, Patience(tries=4, wait=0.5))
    assert slept == [0.5, 1.0, 2.0]


def test_a_range_need_not_repeat_the_date(server: Server, target: Path) -> None:
    server.terse, server.break_after = True, [70_000]
    get(server, target)
    assert target.read_bytes() == BODY
    assert server.ranges_asked == [None, "bytes=70000-"]


def test_a_server_without_ranges_sends_it_anew(server: Server, target: Path) -> None:
    server.ranges, server.break_after = False, [70_000]
    get(server, target)
    assert target.read_bytes() == BODY
    assert server.ranges_asked == [None, "bytes=70000-"]


def test_without_etag_the_date_tells_the_file(server: Server, target: Path) -> None:
    server.etag, server.break_after = "", [70_000]
    get(server, target)
    assert target.read_bytes() == BODY
    assert server.ranges_asked == [None, "bytes=70000-"]


def test_a_weak_etag_is_not_relied_on(server: Server, target: Path) -> None:
    server.etag, server.modified, server.break_after = 'W/"one"', "", [70_000]
    get(server, target)
    assert target.read_bytes() == BODY
    assert server.ranges_asked == [None, None]


def test_a_part_of_unknown_origin_is_written_over(server: Server, target: Path) -> None:
    target.parent.mkdir()
    Path(f"{target}.part").write_bytes(b"x" * 300_000)
    get(server, target)
    assert target.read_bytes() == BODY
    assert server.ranges_asked == [None]


def test_a_part_of_another_address_is_written_over(server: Server, target: Path) -> None:
    server.files["/other"] = BODY[::-1]
    server.break_after = [70_000]
    with pytest.raises(InputError):
        fetch(f"{server.url}/other", target, silent, None, Patience(tries=1))
    get(server, target)
    assert target.read_bytes() == BODY


@pytest.mark.parametrize("heed", [True, False])
@pytest.mark.parametrize("longer", [0, 5000, -150_000])
def test_a_file_that_changed_is_begun_anew(server: Server, target: Path, heed: bool, longer: int) -> None:
    new = np.random.default_rng(1).bytes(len(BODY) + longer)
    server.heed_condition, server.break_after = heed, [70_000]
    with pytest.raises(InputError):
        get(server, target, Patience(tries=1))
    server.files["/file"], server.etag = new, '"two"'
    get(server, target)
    assert target.read_bytes() == new


def test_an_old_part_is_never_taken_for_the_new_file(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.break_after = [70_000]
    with pytest.raises(InputError):
        get(server, target, Patience(tries=1))
    server.files["/file"], server.etag = BODY[::-1], '"two"'
    with monkeypatch.context() as full:
        full.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 0}))
        with pytest.raises(InputError, match="disk is full"):
            get(server, target)
    get(server, target)
    assert target.read_bytes() == BODY[::-1]


def test_a_length_that_changed_alone_is_enough(server: Server, target: Path) -> None:
    server.break_after = [70_000]
    with pytest.raises(InputError):
        get(server, target, Patience(tries=1))
    server.files["/file"] = new = BODY[::-1] + b"more"
    get(server, target)
    assert target.read_bytes() == new


def test_a_range_that_was_not_asked_for_is_not_used(server: Server, target: Path) -> None:
    server.break_after, server.shift = [70_000], 7
    get(server, target)
    assert target.read_bytes() == BODY
    assert server.ranges_asked == [None, "bytes=70000-", None]


def test_a_whole_part_only_gets_its_name(server: Server, target: Path) -> None:
    server.break_after = [70_000]
    with pytest.raises(InputError):
        get(server, target, Patience(tries=1))
    Path(f"{target}.part").write_bytes(BODY)  # as if the process had been killed just before the end
    get(server, target)
    assert target.read_bytes() == BODY
    assert len(server.asked) == 1


def test_a_server_that_promises_too_much_is_not_believed(server: Server, target: Path) -> None:
    server.length = 100
    with pytest.raises(InputError, match=r"could not be reached.*put it at"):
        get(server, target)
    assert not target.exists()


def test_a_server_that_tells_no_length_is_not_believed(server: Server, target: Path) -> None:
    server.length = None
    with pytest.raises(InputError, match=r"does not say how long the file is"):
        get(server, target)
    assert not target.exists()


def test_a_stalled_connection_is_given_up(server: Server, target: Path) -> None:
    server.pause = 0.6
    begin = time.monotonic()
    with pytest.raises(InputError, match=r"could not be reached.*timed out"):
        get(server, target, Patience(tries=2, wait=0.01, stall=0.2))
    assert time.monotonic() - begin < 3


def test_a_crawling_connection_is_given_up(server: Server, target: Path) -> None:
    server.pause = 0.05  # 2,000 bytes each time: a socket's own time limit never sees that it crawls
    begin = time.monotonic()
    with pytest.raises(InputError, match=r"only [\d,]+ bytes came in 0\.3 seconds"):
        get(server, target, Patience(tries=1, stall=0.3, crawl=100_000))
    assert time.monotonic() - begin < 2


# -- not to be had ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [404, 403])
def test_what_is_not_there_is_asked_for_once(server: Server, target: Path, code: int) -> None:
    server.fail = [code] * 9
    with pytest.raises(InputError, match=rf"/file could not be reached: .* {code} .*put it at .*file.bin"):
        get(server, target)
    assert len(server.asked) == 1


@pytest.mark.parametrize("code", [500, 503, 429])
def test_a_server_in_trouble_is_asked_again(server: Server, target: Path, code: int) -> None:
    server.fail = [code, code]
    get(server, target)
    assert target.read_bytes() == BODY
    assert len(server.asked) == 3


def test_a_server_in_trouble_is_given_up(server: Server, target: Path) -> None:
    server.fail = [500] * 9
    with pytest.raises(InputError, match=r"could not be reached: the server answered 500"):
        get(server, target)


def test_a_web_page_is_no_file(server: Server, target: Path) -> None:
    server.kind = "text/html; charset=utf-8"
    with pytest.raises(InputError, match=r"a web page came instead of the file"):
        get(server, target)
    assert not target.exists()


def test_offline_is_said_at_once(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download.time, "sleep", lambda _: pytest.fail("waited"))
    with pytest.raises(InputError, match=r"127.0.0.1:9/x could not be reached: Connection refused;.*put it at"):
        fetch("http://127.0.0.1:9/x", target, silent)


def test_no_address(target: Path) -> None:
    with pytest.raises(InputError, match=r"this is not a valid address"):
        fetch("http://[x/file", target, silent)


# -- checksums -------------------------------------------------------------------------------------------------


def test_the_right_checksum_passes(server: Server, target: Path) -> None:
    get(server, target, sha256=hashlib.sha256(BODY).hexdigest())
    get(server, target, sha256=hashlib.sha256(BODY).hexdigest())


def test_the_wrong_checksum_leaves_nothing(server: Server, target: Path) -> None:
    with pytest.raises(InputError, match=r"/file has the sha256 \w+, not 0000"):
        get(server, target, sha256="0000")
    assert left(target) == set()


def test_a_cached_file_is_checked_against_a_known_checksum(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"put there by hand")
    get(server, target)  # nothing is known of it
    with pytest.raises(InputError, match=r"file.bin is damaged"):
        get(server, target, sha256=hashlib.sha256(BODY).hexdigest())
    assert server.asked == []


def test_a_cached_file_is_checked_against_its_record(server: Server, target: Path) -> None:
    get(server, target)
    target.write_bytes(BODY[:-1] + b"?")
    with pytest.raises(InputError, match=r"file.bin is damaged.*delete it and file.bin.sha256"):
        get(server, target)


# -- the disk --------------------------------------------------------------------------------------------------


def test_too_little_space_is_said_before_it_is_filled(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1234})
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(InputError, match=r"the disk is full \(200,000 bytes are needed, 1,234 are free\)"):
        get(server, target)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(server: Server, target: Path) -> None:
    target.parent.mkdir()
    Path(f"{target}.part").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"file.bin: the disk is full \(No space left on device\); free some"):
        get(server, target)


def test_a_cache_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(InputError, match=r"the cache cannot be written.*TRAJSTITCH_CACHE"):
        get(server, tmp_path / "taken" / "file.bin")


# -- two at once -----------------------------------------------------------------------------------------------


def fetch_and_tell(url: str, target: Path, told: multiprocessing.Queue[str]) -> None:
    notes: set[str] = set()
    fetch(url, target, lambda done, total, note: notes.add(note), None, QUICK)
    told.put(", ".join(sorted(notes)))


def test_two_processes_share_one_download(server: Server, target: Path) -> None:
    server.pause = 0.01
    context = multiprocessing.get_context("forkserver")
    told = context.Queue()
    jobs = [context.Process(target=fetch_and_tell, args=(f"{server.url}/file", target, told)) for _ in range(2)]
    for job in jobs:
        job.start()
    notes = sorted(told.get(timeout=30) for _ in jobs)
    for job in jobs:
        job.join(30)
    assert [job.exitcode for job in jobs] == [0, 0]
    assert target.read_bytes() == BODY
    assert server.asked == [("/file", None)]
    assert notes[1] == "downloading file.bin"
    assert notes[0] in ("", "another process downloads file.bin")  # the first is "" if it came after the end


def test_a_waiting_one_takes_over_when_the_first_gives_up(server: Server, target: Path) -> None:
    server.pause, server.break_after = 0.005, [70_000]
    failed: list[InputError] = []

    def first() -> None:
        try:
            get(server, target, Patience(tries=1))
        except InputError as error:
            failed.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    while not server.asked:
        time.sleep(0.005)
    get(server, target)
    thread.join()
    assert len(failed) == 1
    assert target.read_bytes() == BODY
    assert server.ranges_asked == [None, "bytes=70000-"]


def test_waiting_for_another_process_is_bounded(server: Server, target: Path) -> None:
    target.parent.mkdir()
    impatient = Patience(tries=1, wait=0.01, stall=0.2)
    with (
        download._locked(target, silent, QUICK),
        pytest.raises(InputError, match=r"another process began to download it and makes no progress"),
    ):
        get(server, target, impatient)


# -- D4RL by name ----------------------------------------------------------------------------------------------


@pytest.fixture
def d4rl_server(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("TRAJSTITCH_D4RL_URL", server.url + "/")
    monkeypatch.setenv("TRAJSTITCH_CACHE", str(tmp_path / "cache"))
    server.files[PLACE] = small_file(tmp_path)
    return server


def small_file(folder: Path) -> bytes:
    rng = np.random.default_rng(0)
    data = ts.Dataset(
        obs=rng.normal(size=(8, 11)).astype(np.float32),
        action=rng.normal(size=(6, 3)).astype(np.float32),
        reward=rng.normal(size=6).astype(np.float32),
        start=np.array([0, 4, 6]),
        terminal=np.array([True, False]),
    )
    path = folder / "small.hdf5"
    d4rl.write(data, str(path))
    return path.read_bytes()


def test_a_name_becomes_a_data_set(d4rl_server: Server, tmp_path: Path) -> None:
    data = ts.load(f"d4rl:{NAME}")
    assert data.fingerprint == ts.load(tmp_path / "small.hdf5").fingerprint
    assert data.info == {"env_id": "Hopper-v4", "physics": "d4rl", "source": f"d4rl:{NAME}"}
    assert (tmp_path / "cache" / "d4rl" / "hopper_medium-v2.hdf5").exists()
    again = ts.load(f"d4rl:{NAME}")
    assert again.fingerprint == data.fingerprint
    assert d4rl_server.asked == [(PLACE, None)]


def test_a_file_put_there_by_hand_needs_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAJSTITCH_D4RL_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("TRAJSTITCH_CACHE", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(InputError) as offline:
        fetch_d4rl(NAME, silent)
    place = Path(str(offline.value).rpartition("put it at ")[2])
    assert place == tmp_path / "d4rl" / "hopper_medium-v2.hdf5"
    place.write_bytes(small_file(tmp_path))
    assert fetch_d4rl(NAME, silent).transitions == 6


@pytest.mark.parametrize(
    ("name", "place", "env_id"),
    [
        ("hopper-medium-v2", "gym_mujoco_v2/hopper_medium-v2.hdf5", "Hopper-v4"),
        ("halfcheetah-medium-replay-v2", "gym_mujoco_v2/halfcheetah_medium_replay-v2.hdf5", "HalfCheetah-v4"),
        ("walker2d-medium-expert-v1", "gym_mujoco_v1/walker2d_medium_expert-v1.hdf5", "Walker2d-v4"),
        ("ant-full-replay-v2", "gym_mujoco_v2/ant_full_replay-v2.hdf5", "Ant-v4"),
        ("ant-medium-replay-v0", "gym_mujoco/ant_mixed.hdf5", "Ant-v4"),
        ("hopper-medium-v0", "gym_mujoco/hopper_medium.hdf5", "Hopper-v4"),
        ("hopper-medium-replay-v0", "gym_mujoco/hopper_mixed.hdf5", "Hopper-v4"),
        ("walker2d-medium-replay-v0", "gym_mujoco/walker_mixed.hdf5", "Walker2d-v4"),
        ("walker2d-medium-expert-v0", "gym_mujoco/walker2d_medium_expert.hdf5", "Walker2d-v4"),
    ],
)
def test_every_name_has_its_place(d4rl_server: Server, name: str, place: str, env_id: str) -> None:
    d4rl_server.files[f"/{place}"] = d4rl_server.files[PLACE]
    assert fetch_d4rl(name, silent).info["env_id"] == env_id


@pytest.mark.parametrize("name", ["hoper-medium-v2", "hopper-full-replay-v0", "hopper", "../x", ""])
def test_an_unknown_name_lists_what_is_known(d4rl_server: Server, name: str) -> None:
    with pytest.raises(InputError, match=r"is not known.*hopper, halfcheetah.*medium-replay.*v0, v1, v2"):
        fetch_d4rl(name, silent)
    assert d4rl_server.asked == []


def test_a_slip_of_the_keyboard_is_guessed(d4rl_server: Server) -> None:
    with pytest.raises(InputError, match=r"did you mean hopper-medium-v2\?"):
        fetch_d4rl("hoper-medium-v2", silent)


def test_a_damaged_file_in_the_cache(d4rl_server: Server, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "d4rl" / "hopper_medium-v2.hdf5"
    path.parent.mkdir(parents=True)
    for content in (b"", b"no HDF5", d4rl_server.files[PLACE][:3000]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"hopper_medium-v2\.hdf5: .*; delete this file and load again"):
            fetch_d4rl(NAME, silent)


def test_a_server_that_promises_too_little(d4rl_server: Server) -> None:
    d4rl_server.length = -3000
    with pytest.raises(InputError, match=r"delete this file and load again"):
        fetch_d4rl(NAME, silent)


def test_a_file_without_time_outs_is_cut_by_d4rls_own_rule(d4rl_server: Server, tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "old.hdf5", "w") as file:
        file["observations"] = np.random.default_rng(0).normal(size=(2500, 11))
        file["actions"] = np.zeros((2500, 3), np.float32)
        file["rewards"] = np.zeros(2500)
        file["terminals"] = np.zeros(2500, bool)
    d4rl_server.files["/gym_mujoco/hopper_medium.hdf5"] = (tmp_path / "old.hdf5").read_bytes()
    assert fetch_d4rl("hopper-medium-v0", silent).length.tolist() == [999, 999, 499]


def test_a_known_checksum_is_used(d4rl_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(download._SHA256, NAME, "0000")
    with pytest.raises(InputError, match=r"not 0000"):
        fetch_d4rl(NAME, silent)


def test_a_mirror_must_be_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAJSTITCH_D4RL_URL", "file:///etc")
    with pytest.raises(InputError, match=r"TRAJSTITCH_D4RL_URL is 'file:///etc'; it must start with http"):
        fetch_d4rl(NAME, silent)


def test_defaults_are_d4rls_server_and_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TRAJSTITCH_D4RL_URL", "TRAJSTITCH_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os.path, "expanduser", lambda p: str(p).replace("~", str(tmp_path)))
    asked: list[tuple[str, Path]] = []

    def note(url: str, target: Path, *rest: object) -> None:
        asked.append((url, target))
        raise InputError("enough")

    monkeypatch.setattr(download, "fetch", note)
    with pytest.raises(InputError, match=r"enough"):
        fetch_d4rl(NAME, silent)
    url = "http://rail.eecs.berkeley.edu/datasets/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5"
    assert asked == [(url, tmp_path / ".cache" / "trajstitch" / "d4rl" / "hopper_medium-v2.hdf5")]


def test_the_note_of_a_part_tells_its_file(server: Server, target: Path) -> None:
    server.break_after = [70_000]
    with pytest.raises(InputError):
        get(server, target, Patience(tries=1))
    assert json.loads(Path(f"{target}.part.json").read_text()) == {
        "url": f"{server.url}/file",
        "length": len(BODY),
        "etag": server.etag,
        "modified": server.modified,
    }
