"""Whether robomimic's own reader finds in our files what we wrote, step by step.

robomimic needs PyTorch, so it runs in an environment of its own; the two take turns:

    python -m benchmarks.peers.robomimic_reads write FOLDER
    ROBOMIMIC/bin/python benchmarks/peers/robomimic_reads.py check FOLDER
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

KEPT = (3, 0, 4)


def write(folder: Path) -> None:
    """Write some of the embedded data, and choose episodes of that file."""
    import trajstitch as ts

    data = ts.load("demo")[:6]
    ts.save(data, f"robomimic:{folder / 'all.hdf5'}", overwrite=True)
    kept = ts.load(folder / "all.hdf5")[list(KEPT)]
    ts.save(kept, f"robomimic:{folder / 'kept.hdf5'}", overwrite=True)
    for name, part in (("all", data), ("kept", kept)):
        arrays = {"obs": part.obs[part.row], "next_obs": part.obs[part.row + 1], "actions": part.action}
        np.savez(folder / f"{name}.npz", **arrays, rewards=part.reward)  # type: ignore[arg-type]


def check(folder: Path) -> dict[str, int]:
    """Read both files with robomimic; return how many steps were compared."""
    specs = {"obs": {"low_dim": ["flat"], "rgb": [], "depth": [], "scan": []}}
    importlib.import_module("robomimic.utils.obs_utils").initialize_obs_utils_with_obs_specs(specs)
    reader: Any = importlib.import_module("robomimic.utils.dataset").SequenceDataset
    compared = {}
    for name in ("all", "kept"):
        expected = np.load(folder / f"{name}.npz")
        data = reader(
            hdf5_path=str(folder / f"{name}.hdf5"),
            obs_keys=("flat",),
            action_keys=("actions",),
            dataset_keys=("actions", "rewards"),
            action_config={"actions": {"normalization": None}},
        )
        assert len(data) == len(expected["actions"])
        for i in range(len(data)):
            item = data[i]
            for key in ("obs", "next_obs"):
                np.testing.assert_array_equal(item[key]["flat"][0], expected[key][i])
            np.testing.assert_array_equal(item["actions"][0], expected["actions"][i])
            np.testing.assert_array_equal(item["rewards"][0], expected["rewards"][i])
        compared[name] = len(data)
    return compared


def main() -> None:
    """Take a turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("turn", choices=("write", "check"))
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    found = {"write": write, "check": check}[args.turn](args.folder)
    print(json.dumps(found) if found else f"{args.turn}: done")


if __name__ == "__main__":
    main()
