"""Whether LeRobot's own reader finds in our folders what we wrote, frame by frame, videos too.

LeRobot needs PyTorch, so it runs in an environment of its own; the two take turns:

    LEROBOT/bin/python benchmarks/peers/lerobot_reads.py record FOLDER     LeRobot records episodes with a video
    python benchmarks/peers/lerobot_reads.py rewrite FOLDER                we leave some out, reorder, add weights
    LEROBOT/bin/python benchmarks/peers/lerobot_reads.py check FOLDER      LeRobot reads all of it

A LeRobot that still reads v2.1 (0.3.3, with datasets 3.6) checks the folder of that version.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

LENGTHS = (12, 7, 9, 15)
KEPT = (2, 0, 3)
FPS = 10
SIZE = 64


def state_of(episode: int, frame: int) -> Any:
    """Return the state of a frame, of which no two are alike."""
    return np.array([episode, frame, 100 * episode + frame], np.float32)


def grey_of(episode: int) -> int:
    """Return how bright the video of an episode is."""
    return 40 + 50 * episode


def record(folder: Path) -> None:
    """Record episodes with LeRobot's own writer."""
    LeRobotDataset = importlib.import_module("lerobot.datasets.lerobot_dataset").LeRobotDataset
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "observation.images.top": {
            "dtype": "video",
            "shape": (SIZE, SIZE, 3),
            "names": ["height", "width", "channels"],
        },
    }
    data = LeRobotDataset.create("me/recorded", FPS, features, root=folder / "recorded", use_videos=True)
    for episode, length in enumerate(LENGTHS):
        for frame in range(length):
            data.add_frame(
                {
                    "observation.state": state_of(episode, frame),
                    "action": np.array([frame, -episode], np.float32),
                    "next.reward": np.array([frame], np.float32),
                    "observation.images.top": np.full((SIZE, SIZE, 3), grey_of(episode), np.uint8),
                    "task": f"task {episode % 2}",
                }
            )
        data.save_episode()
    data.finalize()


def rewrite(folder: Path) -> None:
    """Read the recording and write it again in other ways."""
    from dataclasses import replace

    import trajstitch as ts
    from trajstitch.data import normalised_weight

    data = ts.load(f"lerobot:{folder / 'recorded'}")
    assert data.length.tolist() == [length - 1 for length in LENGTHS]
    weighed = replace(data, weight=normalised_weight(1 + np.arange(data.transitions)))
    kept = weighed[list(KEPT)]
    ts.save(kept, f"lerobot:{folder / 'kept'}", overwrite=True)
    ts.save(ts.concatenate([data, data[:2]]), f"lerobot:{folder / 'joined'}", overwrite=True)
    ts.save(replace(data, origin=None), f"lerobot:{folder / 'plain'}", overwrite=True)
    ts.save(ts.load("demo")[:5], f"lerobot:{folder / 'demo'}", overwrite=True)
    ts.save(replace(data, origin=None), f"lerobot-v2.1:{folder / 'old'}", overwrite=True)
    demo = ts.load("demo")[:5]
    assert kept.weight is not None
    np.savez(folder / "expected.npz", weight=kept.weight, obs=demo.obs, start=demo.start)


def check(folder: Path) -> dict[str, int]:
    """Read everything with LeRobot; return how many frames were compared."""
    module = importlib.import_module("lerobot.datasets.lerobot_dataset")
    if module.CODEBASE_VERSION == "v2.1":
        return check_old(module.LeRobotDataset("me/old", root=folder / "old"))
    LeRobotDataset = module.LeRobotDataset
    expected = np.load(folder / "expected.npz")
    compared = {}
    everything = range(len(LENGTHS))
    for name, order in (("kept", KEPT), ("joined", (*everything, 0, 1)), ("plain", everything)):
        data = LeRobotDataset(f"me/{name}", root=folder / name)
        assert data.num_episodes == len(order)
        frames = [(m, episode, t) for m, episode in enumerate(order) for t in range(LENGTHS[episode])]
        assert len(data) == len(frames)
        weight = iter(expected["weight"])
        for i, (m, episode, t) in enumerate(frames):
            item = data[i] if name == "plain" else without_video(data, i)
            last = t == LENGTHS[episode] - 1
            np.testing.assert_array_equal(item["observation.state"], state_of(episode, t))
            assert (int(item["episode_index"]), int(item["frame_index"]), int(item["index"])) == (m, t, i)
            if name != "plain":
                np.testing.assert_array_equal(item["action"], np.array([t, -episode], np.float32))
                assert item["task"] == f"task {episode % 2}"
                assert abs(float(brightness(data, m, t)) - grey_of(episode)) < 4, (name, m, t)
            if name == "kept":
                assert float(item["weight"]) == (0 if last else next(weight))
        np.testing.assert_allclose(data.meta.stats["observation.state"]["max"][0], max(order))
        compared[name] = len(frames)
    demo = LeRobotDataset("me/demo", root=folder / "demo")
    np.testing.assert_array_equal(
        np.stack([demo[i]["observation.state"] for i in range(len(demo))]), expected["obs"]
    )
    return compared | {"demo": len(demo)}


def check_old(data: Any) -> dict[str, int]:
    """Compare the states of a folder of v2.1."""
    frames = [(episode, t) for episode, length in enumerate(LENGTHS) for t in range(length)]
    assert len(data) == len(frames)
    for i, (episode, t) in enumerate(frames):
        np.testing.assert_array_equal(data[i]["observation.state"], state_of(episode, t))
    return {"old": len(frames)}


def without_video(data: Any, i: int) -> dict[str, Any]:
    """Return a frame without decoding its video, which `brightness` does for itself."""
    item = dict(data.hf_dataset[i])
    return item | {"task": data.meta.tasks.iloc[int(item["task_index"])].name}


def brightness(data: Any, episode: int, frame: int) -> float:
    """Return the mean of a video's frame, found by LeRobot's metadata."""
    av = importlib.import_module("av")
    row = data.meta.episodes[episode]
    seconds = row["videos/observation.images.top/from_timestamp"] + frame / FPS
    with av.open(str(data.root / data.meta.get_video_file_path(episode, "observation.images.top"))) as video:
        images = [(float(image.time), image.to_ndarray(format="gray").mean()) for image in video.decode(video=0)]
    return float(min(images, key=lambda pair: abs(pair[0] - seconds))[1])


def main() -> None:
    """Take a turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("turn", choices=("record", "rewrite", "check"))
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    found = {"record": record, "rewrite": rewrite, "check": check}[args.turn](args.folder)
    print(json.dumps(found) if found else f"{args.turn}: done")


if __name__ == "__main__":
    main()
