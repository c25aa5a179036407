"""Kinds of files for benchmarks/fuzz.py: for each, sound examples and how they are read."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from trajstitch.cli.summary import summarise
from trajstitch.data import Dataset, Seams, Trajectory, from_trajectories
from trajstitch.errors import InputError
from trajstitch.formats import load, save
from trajstitch.formats.d4rl import to_table
from trajstitch.formats.features import Features
from trajstitch.formats.lerobot import READ, WRITE_OLD
from trajstitch.storage.atomic import json_text, write_json, write_text


@dataclass(frozen=True)
class Kind:
    """A kind of file: sound examples, of which one is mutated and read each time."""

    name: str
    make: Callable[[Path], list[str]]  # writes sound files or folders and returns their names
    read: Callable[[Path], Any]


def sample() -> Dataset:
    """A small data set with seams, weights and info."""
    rng = np.random.default_rng(0)
    many = []
    for steps in (6, 3, 9, 4):
        rows = rng.uniform(-1, 1, (steps + 1, 6)).astype(np.float32)
        many.append(Trajectory(rows[:, :3], rows[:-1, 3:5], rows[:-1, 5], steps % 2 == 0))
    data = from_trajectories(many, {"env_id": "Hopper-v5", "ref_min_score": 0.0, "ref_max_score": 9.0, "seed": 3})
    stitched = np.arange(data.transitions) % 5 == 0
    zero = np.zeros(data.transitions, np.float32)
    seams = Seams(data.row, data.row + 1, stitched, zero, zero, zero, data.returns)
    return replace(data, seams=seams, weight=np.ones(data.transitions, np.float32))


def read_data(path: Path | str) -> Any:
    """Load and inspect."""
    data = load(path, flatten=True)
    return repr(data), summarise(data)


def make_hdf5(folder: Path) -> list[str]:
    """Our layout, and a compressed one as D4RL has it."""
    save(sample(), folder / "ours.hdf5")
    with h5py.File(folder / "theirs.hdf5", "w") as file:
        table = to_table(sample())
        del table["next_observations"]
        for name, column in table.items():
            file.create_dataset(name, data=column, compression="gzip", chunks=True)
        file["infos/goal"] = np.zeros((len(table["actions"]), 2))
        file.attrs["algorithm"] = np.bytes_("sac")
    return ["ours.hdf5", "theirs.hdf5"]


def make_npz(folder: Path) -> list[str]:
    """Our layout, D4RL's keys and OGBench's."""
    save(sample(), folder / "ours.npz")
    table = to_table(sample())
    np.savez_compressed(folder / "d4rl.npz", **table)  # type: ignore[arg-type]
    ends = table["timeouts"] | table["terminals"]
    np.savez(folder / "ogbench.npz", observations=table["observations"], actions=table["actions"], terminals=ends)
    return ["ours.npz", "d4rl.npz", "ogbench.npz"]


def make_traj(folder: Path) -> list[str]:
    """Our folder."""
    save(sample(), folder / "ours.traj")
    return ["ours.traj"]


def make_minari(folder: Path) -> list[str]:
    """Minari's two kinds of storage."""
    import minari
    from gymnasium.spaces import Box

    from trajstitch.formats import minari as ours

    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    data = replace(sample(), seams=None)
    spaces = {"observation_space": Box(-9, 9, (3,)), "action_space": Box(-1, 1, (2,))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours.write(data, str(folder / "hdf5-v0"))
        minari.create_dataset_from_buffers("arrow-v0", list(ours._buffers(data)), data_format="arrow", **spaces)
    return ["hdf5-v0", "arrow-v0"]


def make_policies(folder: Path) -> list[str]:
    """Ours, stacked ones, a tanh-Gaussian and the policy inside a D4RL file."""
    import jax

    from trajstitch.policies.policy import Policy, stack
    from trajstitch.policies.policy_files import save_policy
    from trajstitch.training.networks import Range, Scale

    data = sample()
    scale, span = Scale.of(data.obs), Range.of(data.action)
    keys = jax.random.split(jax.random.key(0))
    policies = [Policy.init(scale, span, key, "gaussian", width=4) for key in keys]
    save_policy(policies[0], folder / "ours.npz", data.info)
    save_policy(stack(policies), folder / "stack.npz", data.info)
    rng = np.random.default_rng(0)
    sizes = {"fc0": (4, 3), "fc1": (4, 4), "mean": (2, 4), "logstd": (2, 4)}
    arrays = {f"{name}_w": rng.normal(size=size) for name, size in sizes.items()}
    arrays |= {f"{name}_b": rng.normal(size=size[0]) for name, size in sizes.items()}
    np.savez(folder / "sac.npz", **arrays)  # type: ignore[arg-type]
    with h5py.File(folder / "d4rl.hdf5", "w") as file:
        for theirs, ours in {"fc0": "fc0", "fc1": "fc1", "last_fc": "mean", "last_fc_log_std": "logstd"}.items():
            file[f"metadata/policy/{theirs}/weight"] = arrays[f"{ours}_w"]
            file[f"metadata/policy/{theirs}/bias"] = arrays[f"{ours}_b"]
    return ["ours.npz", "stack.npz", "sac.npz", "d4rl.hdf5"]


def make_planners(folder: Path) -> list[str]:
    """Two planners as they are before training."""
    import jax

    from trajstitch.methods import configure
    from trajstitch.policies.policy_files import save_policy

    data = replace(sample(), seams=None, weight=None)
    settings: dict[str, dict[str, Any]] = {
        "mbop": {"width": 4, "depth": 1, "members": 2, "samples": 4},
        "diffuser": {"width": 8, "depth": 2, "blocks": 1, "plan_horizon": 4, "diffusion_steps": 2},
    }
    names = []
    for name, chosen in settings.items():
        method = configure(name, **chosen)
        model = method.init(method.table(data), jax.random.key(0))
        save_policy(method.policy(model), folder / f"{name}.npz", data.info)
        names.append(f"{name}.npz")
    return names


def read_policy(path: Path) -> Any:
    """Load a policy or planner and its info."""
    from trajstitch.policies.policy_files import load_policy, policy_info

    return load_policy(path).action_dim, policy_info(path)


def make_stages(folder: Path) -> list[str]:
    """What `improve` keeps of its stages, with models as they are before training."""
    import jax

    from trajstitch.data import change_table, step_table
    from trajstitch.models.dynamics import DynamicsConfig
    from trajstitch.models.inverse import InverseConfig
    from trajstitch.models.reward import RewardConfig
    from trajstitch.models.value import ValueConfig
    from trajstitch.stitching.graph import EdgeFinder, GraphConfig
    from trajstitch.storage.serialise import store

    data, key = sample(), jax.random.key(0)
    steps = step_table(data)
    stages = {
        "dynamics": DynamicsConfig(width=4, depth=1).init(change_table(data), key),
        "inverse": InverseConfig(width=4).init(steps, key),
        "reward": RewardConfig(kind="vae", width=4).init(steps, key),
        "value": ValueConfig(width=4).init(steps, key),
        "graph": EdgeFinder(data, GraphConfig(epsilon=1.0)).empty(),
    }
    for name, stage in stages.items():
        store((stage, {"note": [1, 2.5, None]}), folder / f"{name}.npz", note="0123")
    return [f"{name}.npz" for name in stages]


def read_stage(path: Path) -> Any:
    """Read a stage and its note."""
    from trajstitch.storage.serialise import read_note, restore

    return read_note(path), restore(path)


def make_runs(folder: Path) -> list[str]:
    """A run directory with settings, metrics and a training state."""
    from trajstitch.jobs.run_dir import Run

    settings = {
        "method": "bc",
        "config": {"width": 4, "fit": {"steps": 2}},
        "data": {"info": {"env_id": "Hopper-v5"}},
    }
    run = Run.open(folder / "run", settings)
    run.record(1, loss=[0.5])
    run.record(2, loss=[0.25])
    run.save_state([np.zeros((2, 3), np.float32), np.zeros(2, np.int32)])
    return ["run"]


def read_run(path: Path) -> Any:
    """Read all that a run directory holds."""
    from trajstitch.jobs.run_dir import Run

    run = Run.existing(path)
    state = run.load_state([np.zeros((2, 3), np.float32), np.zeros(2, np.int32)])
    return run.job, run.settings(), run.metrics(), run.steps(), state


def make_lerobot(folder: Path) -> list[str]:
    """Both versions that we write, and one with a video in v3.0."""
    save(sample(), f"{READ}{folder / 'v3'}")
    save(sample(), f"{WRITE_OLD}{folder / 'v2'}")
    _add_video(folder / "v3")
    return ["v3", "v2"]


def _add_video(root: Path) -> None:
    """Let a folder of v3.0 have a video, with statistics, and who recorded each episode."""
    import pyarrow.parquet as pq

    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["eye"] = {"dtype": "video", "shape": [4, 4, 3], "names": None}
    info["video_path"] = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    write_json(root / "meta/info.json", info)
    (root / "videos/eye/chunk-000").mkdir(parents=True)
    (root / "videos/eye/chunk-000/file-000.mp4").write_bytes(b"a video")
    file = root / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(file)
    more = {"chunk_index": 0, "file_index": 0, "from_timestamp": 0.5, "to_timestamp": 1.5}
    columns: dict[str, Any] = {f"videos/eye/{name}": value for name, value in more.items()}
    columns |= {"stats/eye/mean": [[[0.5]]], "operator": "x"}
    for name, value in columns.items():
        rows = rows.append_column(name, [[value] * len(rows)])
    pq.write_table(rows, file)


def read_lerobot(path: Path) -> Any:
    """Load and inspect a folder by its format, and read again what its episodes keep when they are written."""
    from trajstitch.formats.lerobot import _carrying, _folders

    data = load(f"{READ}{path}")
    return summarise(data), list(_carrying(data, _folders(data)).episodes)


def make_robomimic(folder: Path) -> list[str]:
    """Our file, and one without successors and with filter keys."""
    save(sample(), f"robomimic:{folder / 'ours.hdf5'}")
    save(sample(), f"robomimic:{folder / 'theirs.hdf5'}")
    with h5py.File(folder / "theirs.hdf5", "r+") as file:
        for demo in file["data"].values():
            del demo["next_obs"]
            demo["obs/image"] = np.zeros((len(demo["actions"]), 2, 2, 3), np.uint8)
        file["mask/train"] = np.array(["demo_2", "demo_0"], "S")
    return ["ours.hdf5", "theirs.hdf5"]


def read_robomimic(path: Path) -> Any:
    """Load and inspect a file by its format, and read again what its demonstrations keep when they are written."""
    from trajstitch.formats import robomimic

    key = None if path.name == "ours.hdf5" else "train"
    data = load(f"{robomimic.PREFIX}{path}", features=Features(filter_key=key))
    with h5py.File("new", "w", driver="core", backing_store=False) as new, robomimic._source(path) as source:
        try:
            robomimic._fill(new, data, {str(path.absolute()): source})
        except RuntimeError as error:  # of HDF5; `write` reports it
            raise InputError(" ".join(str(error).split())) from error
    return summarise(data)


def make_imitation(folder: Path) -> list[str]:
    """A folder as `datasets` saves it, with what we write beside it, and a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    save(sample(), f"imitation:{folder / 'ours'}")
    with pa.memory_map(str(next((folder / "ours").glob("*.arrow")))) as file:
        pq.write_table(pa.ipc.open_stream(file).read_all(), folder / "theirs.parquet")
    return ["ours", "theirs.parquet"]


def read_imitation(path: Path) -> Any:
    """Load and inspect trajectories by their format."""
    return read_data(f"imitation:{path}")


def weighing() -> tuple[Dataset, Any]:
    """Data, and the settings by which they are weighed."""
    from trajstitch.methods.weigh import Weigh

    return sample(), Weigh(members=2, width=4)


def make_appraisals(folder: Path) -> list[str]:
    """A run directory of `weigh` with what its critics said."""
    from trajstitch.jobs.run_dir import Run
    from trajstitch.jobs.weigh import run_settings, store_appraisal
    from trajstitch.methods.weigh import Appraisal

    data, config = weighing()
    rng = np.random.default_rng(0)
    advantage = rng.normal(size=(config.members, data.transitions)).astype(np.float32)
    value = rng.normal(size=len(data.obs)).astype(np.float32)
    store_appraisal(Run.open(folder / "run", run_settings(data, config, 0)), Appraisal(advantage, value))
    return ["run"]


def read_appraisal(path: Path) -> Any:
    """Weigh by what a run directory holds; what it cannot use it would make again, which counts as refused."""
    from trajstitch.jobs.run_dir import Run
    from trajstitch.jobs.weigh import stored_appraisal
    from trajstitch.methods.weigh import weigh_by

    data, config = weighing()
    appraisal = stored_appraisal(Run.existing(path), data, config)
    if appraisal is None:
        raise InputError("set aside")
    return weigh_by(data, appraisal, config), appraisal.agreement


def make_benches(folder: Path) -> list[str]:
    """Folders of `bench`: scores beside published ones, distances to experts, reward models and mazes."""
    from trajstitch.bench.grid import failure_path, make_grid, open_folder, record_path

    asked: dict[str, dict[str, Any]] = {
        "table1": {"data": ("hopper-medium", "walker2d-medium"), "methods": ("bc", "percent-bc", "ts-bc")},
        "expert-fraction": {"data": ("hopper-fraction-0", "hopper-fraction-40")},
        "reward-models": {"data": ("hopper-medium",), "methods": ("reward-mlp", "reward-gaussian", "bc")},
        "mazes": {"data": ("pointmaze-giant-500-task1",), "methods": ("bc", "optimal")},
    }
    for suite, options in asked.items():
        grid = make_grid(suite, seeds=2, stitch_seeds=1, checkpoints=2, **options)
        open_folder(folder / suite, grid)
        for cell in grid.cells[:-1]:
            write_json(record_path(folder / suite, cell), record_of(cell))
        write_text(failure_path(folder / suite, grid.cells[-1]), "the simulator broke\n")
    return list(asked)


def record_of(cell: Any) -> dict[str, Any]:
    """Return a record of a cell with two policies, or two reward models, and two checkpoints."""
    facts = {"source": "here", "transitions": 100, "return_mean": 1.5, "return_std": 0.5}
    if cell.recipe.method is None:
        errors = {"step": [10, 20], "train": [[4.0, None], [0.5, 1.0]], "test": [[5.0, 3.0], [0.25, 0.5]]}
        return {
            "data": facts,
            **errors,
            "others": {name: {"mse": [1.0, 2.0], "std": [0.5, 1.5]} for name in cell.needs[1:]},
        }
    scored: dict[str, Any] = {unit: {"per_seed": [40.5, 60.0]} for unit in ("raw", "normalised")}
    scored["success"] = {"per_seed": [10.0, 20.0]} if "maze" in cell.data else None
    distances = {"kl": [[9.0, 9.5], [1.5, 2.5]], "action_error": [[0.5, 0.25], [0.125, 0.25]]}
    stitched = None if cell.stitch_seed is None else facts
    record = {"data": facts, "stitched": stitched, "step": [10, 20], "last": scored, "best": scored}
    return {
        **record,
        "returns": [[[1.0], [2.0]], [[3.0], [4.0]]],
        **({"expert": distances} if "fraction" in cell.data else {}),
    }


def read_bench(path: Path) -> Any:
    """Go on with a folder as `bench` does, and make its report."""
    from trajstitch.bench.grid import open_folder, stored_grid
    from trajstitch.bench.report import markdown, page
    from trajstitch.bench.tables import read_results, summary

    open_folder(path, stored_grid(path))
    results = read_results(path)
    return markdown(results), page(results), json_text(summary(results))


KINDS = (
    Kind("hdf5", make_hdf5, read_data),
    Kind("npz", make_npz, read_data),
    Kind("traj", make_traj, read_data),
    Kind("minari", make_minari, read_data),
    Kind("policies", make_policies, read_policy),
    Kind("planners", make_planners, read_policy),
    Kind("stages", make_stages, read_stage),
    Kind("configurations", make_runs, read_run),
    Kind("lerobot", make_lerobot, read_lerobot),
    Kind("robomimic", make_robomimic, read_robomimic),
    Kind("imitation", make_imitation, read_imitation),
    Kind("appraisals", make_appraisals, read_appraisal),
    Kind("benches", make_benches, read_bench),
)
