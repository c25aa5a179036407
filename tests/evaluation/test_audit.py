"""Audits of hand-made seams, whose landings are known: from the recording, or from Gymnasium's own simulator."""

import dataclasses

import gymnasium
import numpy as np
import pytest

import trajstitch as ts
from trajstitch.data import Dataset, Seams
from trajstitch.errors import InputError
from trajstitch.evaluation import envs
from trajstitch.evaluation.audit import Audit, audit, calibration, drop_seams, reward_error
from trajstitch.evaluation.collect import collect
from trajstitch.evaluation.env import Step
from trajstitch.evaluation.replay import Replays, Simulator, Unit


@pytest.fixture(scope="module")
def original() -> Dataset:
    return collect("random", "Hopper-v5", 400)


def with_seams(data: Dataset, stitched, promised=np.nan, **changes) -> Dataset:
    """The data with these recorded steps marked as stitched; a seam to where the recording goes."""
    mark = np.zeros(data.transitions, bool)
    mark[stitched] = True
    none = np.zeros(data.transitions, np.float32)
    error = none.copy()
    error[stitched] = promised
    seams = Seams(data.row, data.row + 1, mark, none, none, none, data.returns, error)
    info = {**data.info, "improved_from": data.fingerprint}
    return dataclasses.replace(data, seams=seams, info=info, **changes)


def jump(data: Dataset, jumps: list[tuple[int, int, int, int]]) -> Dataset:
    """Trajectory m up to step t, then a seam with its recorded action to row `at` of n; the others whole."""
    parts = [(np.arange(a, b), None) for a, b in zip(data.start, data.start[1:], strict=False)]
    for m, t, n, at in jumps:
        head, tail = data.start[m] + np.arange(t + 1), np.arange(data.start[n] + at, data.start[n + 1])
        parts[m] = (np.concatenate([head, tail]), t)
    step = np.concatenate([part for part, _ in parts])
    start = np.concatenate([[0], np.cumsum([len(part) for part, _ in parts])])
    source = data.row[step]
    target = np.append(source[1:], 0)
    target[start[1:] - 1] = source[start[1:] - 1] + 1
    seam = np.array([start[m] + t for m, (_, t) in enumerate(parts) if t is not None])
    mark = np.zeros(len(step), bool)
    mark[seam] = True
    none = np.zeros(len(step), np.float32)
    return Dataset(
        obs=data.obs[np.insert(source, start[1:], target[start[1:] - 1])],
        action=data.action[step],
        reward=data.reward[step],
        start=start,
        terminal=data.terminal,
        info={**data.info, "improved_from": data.fingerprint},
        seams=Seams(source, target, mark, none, none, none, data.returns),
    )


def gymnasium_step(obs, action):
    """Where Gymnasium's own Hopper goes."""
    env = gymnasium.make("Hopper-v5").unwrapped
    env.reset(seed=0)
    env.set_state(np.append(0.0, obs[:5]), obs[5:])
    result = env.step(action)
    env.close()
    return result


def in_typical_steps(data: Dataset, a, b):
    std = data.obs.std(0, dtype=np.float64)
    steps = np.linalg.norm((data.obs[data.row + 1] - data.obs[data.row]) / std, axis=1)
    return np.linalg.norm((a - b) / std, axis=-1) / np.median(steps)


def test_a_recorded_step_lands_exactly_and_a_wrong_action_where_the_simulator_says(original):
    steps = np.array([3, 40, 77])
    action = original.action.copy()
    action[40] = -action[40] + 0.3
    found = audit(with_seams(original, steps, action=action), data=original)
    landed, reward, *_ = gymnasium_step(original.obs[original.row[40]].astype(float), action[40])
    expected = in_typical_steps(original, landed, original.obs[original.row[40] + 1])
    assert expected > 0.05
    np.testing.assert_allclose(found.replays.landing, [0, expected, 0], atol=1e-5)
    np.testing.assert_allclose(found.replays.reward[1], reward, atol=1e-5)
    np.testing.assert_allclose(found.replays.recorded_landing, 0, atol=1e-5)
    assert found.floor["median"] < 1e-5
    assert found.floor["exact"]
    summary = found.summary()
    assert summary["seams"] == {"distinct": 3, "chosen": 3, "clipped": 0, "replayed": 3}
    assert summary["promise"] is None
    std_of_step = summary["scale"]["typical_step_in_std"]
    assert summary["landing_in_std"]["p90"] == pytest.approx(summary["landing"]["p90"] * std_of_step)


def test_the_recorded_action_does_not_bridge_the_distance(original):
    improved = jump(original, [(0, 4, 5, 8), (1, 6, 2, 3)])
    summary = audit(improved, data=original).summary()
    rows = original.start + np.arange(len(original) + 1)
    bridged = [
        in_typical_steps(original, original.obs[rows[m] + t + 1], original.obs[rows[n] + at])
        for m, t, n, at in [(0, 4, 5, 8), (1, 6, 2, 3)]
    ]
    for name in ("bridged", "landing", "recorded_action"):
        assert summary[name]["median"] == pytest.approx(np.median(bridged), abs=1e-4), name
    assert summary["bridged"]["median_ratio"] == pytest.approx(1, abs=1e-4)
    alone = audit(improved).summary()  # needs no original
    assert alone["scale"]["of"] == "improved"
    assert alone["bridged"] is None
    assert alone["landing"]["median"] == pytest.approx(np.median(bridged), rel=0.2)


def test_what_a_seam_bridges_by_hand():
    """Of three seams of known distance two land closer than the recorded action; the fourth has none."""
    landing, recorded = np.array([0.2, 0.6, 1.5, 9.0]), np.array([1.0, 2.0, 1.0, np.nan])
    bridged = np.array([1.0, 2.0, 1.0, np.nan])
    unknown, exact, ones = np.full(4, np.nan), np.zeros(4), np.ones(4, int)
    replays = Replays(4, 4, np.arange(4), ones, unknown, landing, exact, exact, exact > 0, bridged, recorded)
    summary = Audit({}, Unit("improved", np.ones(1), 1.0), {}, replays).summary()
    assert summary["recorded_action"]["seam_lands_closer"] == pytest.approx(2 / 3)
    assert summary["bridged"]["median_ratio"] == pytest.approx(0.3)
    assert summary["recorded_action"]["median"] == summary["bridged"]["median"] == 1


def test_promises_are_compared_with_reality(original):
    jumps = [(m, 3, m + 1, 2 + m % 5) for m in range(0, 12, 1)]
    improved = jump(original, jumps)
    real = audit(improved, data=original).replays.landing
    error = np.zeros(improved.transitions, np.float32)
    error[np.flatnonzero(improved.seams.stitched)] = 2 * real
    told = dataclasses.replace(improved, seams=dataclasses.replace(improved.seams, landing_error=error))
    promise = audit(told, data=original).summary()["promise"]
    assert promise["seams"] == 12
    assert (promise["spearman"], promise["pearson"]) == (pytest.approx(1), pytest.approx(1))
    assert promise["median_ratio"] == pytest.approx(0.5, rel=1e-5)
    assert promise["share_within_promise"] == 1
    assert sum(group["seams"] for group in promise["deciles"]) == 12
    for group in promise["deciles"]:
        assert group["promised"] == pytest.approx(2 * group["median"], rel=1e-5)


def test_calibration_of_numbers():
    promised, real = np.arange(1.0, 21), np.arange(20.0, 0, -1)
    found = calibration(promised, real)
    assert found["spearman"] == pytest.approx(-1)
    assert [group["promised"] for group in found["deciles"]] == [1.5 + 2 * k for k in range(10)]
    assert [group["median"] for group in found["deciles"]] == [19.5 - 2 * k for k in range(10)]
    assert found["share_within_promise"] == 0.5
    bent = calibration(promised, promised**3)
    assert bent["spearman"] == pytest.approx(1)
    assert bent["pearson"] < 0.95
    partly = calibration(np.array([np.nan, 1.0, 1.0]), np.array([9.0, 1.0, 3.0]))
    assert (partly["seams"], partly["pearson"], partly["median_ratio"]) == (2, None, 2)
    assert calibration(np.full(3, np.nan), real[:3]) is None
    assert calibration(np.array([1.0, 2.0]), np.array([1.0, 3.0]))["share_within_promise"] == 0.5


def test_errors_of_rewards_by_hand():
    found = reward_error(np.array([1.0, 5.0]), np.array([0.0, 2.0]))
    assert (found["bias"], found["promised"], found["share_too_high"]) == (2, 3, 1)
    assert found["standard_error"] == pytest.approx(1 / np.sqrt(2))


def test_rewards_that_are_promised_too_high(original):
    reward = original.reward.copy()
    reward[[3, 9]] += [0.5, 1.5]
    found = audit(with_seams(original, [3, 9, 14], reward=reward)).summary()["reward"]
    assert found["bias"] == pytest.approx(2 / 3, abs=1e-4)
    assert found["mean_absolute"] == pytest.approx(2 / 3, abs=1e-4)
    assert found["share_too_high"] >= 2 / 3


def test_an_end_counts_only_where_the_data_go_on(original):
    assert original.terminal[:2].all()
    last = original.start[1:3] - 1
    assert audit(with_seams(original, last)).summary()["really_ended"] == 0
    terminal = original.terminal.copy()
    terminal[0] = False
    assert audit(with_seams(original, last, terminal=terminal)).summary()["really_ended"] == 0.5


def test_clipped_states_are_counted(original):
    obs = original.obs.copy()
    obs[original.row[30], -2] = -10  # at the limit: the real velocity may be larger
    obs[original.row[60], -2] = 9.99
    improved = with_seams(original, [30, 60, 90], obs=obs)
    found = audit(improved)
    assert found.summary()["seams"] == {"distinct": 3, "chosen": 3, "clipped": 1, "replayed": 2}
    assert list(found.replays.step) == [60, 90]
    with pytest.raises(InputError, match="all 1 seams start from a state with a clipped velocity"):
        audit(with_seams(original, [30], obs=obs))
    simulator = Simulator("Hopper-v5", "gymnasium", {}, count=100)  # in blocks: there are more states
    assert np.flatnonzero(~simulator.settable(obs)).tolist() == [original.row[30]]
    simulator.close()


class Sled:
    """A sled that an action moves: its velocity is not observed, and each step begins at rest."""

    id, count, obs_dim, horizon = "sled", 4, 2, 100
    action_low, action_high = -np.ones(2), np.ones(2)

    def __init__(self):
        self.place = np.zeros((4, 2))

    def reset(self, index, seed):
        return self.set_state(index, np.zeros((len(index), 2)), None)

    def step(self, action, running=None):
        self.place += action * running[:, None]
        return Step(self.place.copy(), action[:, 0] * running, np.zeros(4, bool), np.zeros(4, bool))

    def state_of(self, obs):
        return obs.copy(), np.zeros((len(obs), 2))

    def set_state(self, index, qpos, qvel):
        self.place[index] = np.minimum(qpos, 50)  # a wall: no state is behind it
        return self.place[index]

    def close(self):
        pass


def test_an_environment_that_observes_no_velocity_can_be_set(monkeypatch):
    monkeypatch.setattr(envs, "make", lambda *given, **options: Sled())
    obs = np.arange(12.0).reshape(6, 2)
    obs[4, 0] = 60
    simulator = Simulator("sled", "gymnasium", {})
    assert simulator.settable(obs).tolist() == [True] * 4 + [False, True]
    action = np.linspace(-1, 1, 12).reshape(6, 2)
    landed, reward, _ = simulator.step(obs[:4], action[:4])
    np.testing.assert_allclose(landed, obs[:4] + action[:4])
    np.testing.assert_allclose(reward, action[:4, 0])


def test_a_sample_is_a_part_of_all_and_the_same_again(original):
    improved = with_seams(original, np.arange(5, 200, 3))
    one, again, other = (audit(improved, sample=10, seed=seed).replays for seed in (0, 0, 1))
    assert (one.distinct, one.chosen) == (65, 10)
    assert one.step.tolist() == again.step.tolist() != other.step.tolist()
    np.testing.assert_array_equal(one.landing, again.landing)
    everything = audit(improved, sample=0).replays
    assert everything.chosen == 65
    assert set(one.step) < set(everything.step)


def test_a_seam_that_is_used_twice_is_replayed_once(original):
    improved = jump(original, [(0, 4, 5, 8)])
    twice = improved[np.array([0, 0, 1, 2, 3, 4])]
    found = audit(twice)
    assert (found.replays.distinct, found.replays.uses.tolist()) == (1, [2])


def test_a_seam_counts_as_often_as_it_is_used(original):
    improved = jump(original, [(0, 4, 5, 8), (1, 6, 2, 3)])
    found = audit(improved[np.array([0, 1, 1, 1, 2, 3])])
    by_use = dict(zip(found.replays.uses.tolist(), found.replays.landing, strict=True))
    summary = found.summary()
    assert summary["most_used"] == 0.75
    assert summary["landing_per_use"]["median"] == pytest.approx(by_use[3])
    assert summary["landing"]["median"] == pytest.approx((by_use[1] + by_use[3]) / 2)


def test_another_simulator_is_refused():
    data = collect("random", "HalfCheetah-v5", 120, env_horizon=40)
    improved = with_seams(data, [5, 50])
    assert audit(improved).floor["exact"]
    with pytest.raises(InputError, match=r"Walker2d-v5 with physics gymnasium misses .* give the right --env or"):
        audit(improved, "Walker2d-v5")
    with pytest.raises(InputError, match="17 observations and 6 actions, but Hopper-v5 has 11 and 3"):
        audit(improved, "Hopper-v5")


def test_other_physics_are_seen(original):
    floor = audit(with_seams(original, [5]), physics="d4rl").floor
    assert not floor["exact"]
    assert 1e-3 < floor["median"] < 0.5


def test_mistakes_are_one_sentence(original):
    improved = with_seams(original, [5])
    with pytest.raises(InputError, match="have no table of seams"):
        audit(original)
    with pytest.raises(InputError, match="nothing is stitched"):
        audit(with_seams(original, []))
    with pytest.raises(InputError, match="sample must not be below 0"):
        audit(improved, sample=-1)
    with pytest.raises(InputError, match="were not made from the data given"):
        audit(improved, data=original[:3])
    with pytest.raises(InputError, match="name no environment"):
        audit(dataclasses.replace(improved, info={}))
    pendulum = collect("random", "InvertedPendulum-v5", 30)
    with pytest.raises(InputError, match="InvertedPendulum-v5 cannot be set to the state"):
        audit(with_seams(pendulum, [5]))


# -- dropping --------------------------------------------------------------------------------------------------


def slow_drop(data: Dataset, dropped: set[int]) -> list[ts.Trajectory]:
    """The pieces between dropped steps, one step at a time."""
    pieces, step = [], 0
    for trajectory in data:
        open_piece: list[int] = []
        for t in range(len(trajectory) + 1):
            end = t == len(trajectory)
            if (end or step + t in dropped) and open_piece:
                a, b = open_piece[0], open_piece[-1] + 1
                terminal = end and trajectory.terminal
                pieces.append(
                    ts.Trajectory(
                        trajectory.obs[a : b + 1], trajectory.action[a:b], trajectory.reward[a:b], terminal
                    )
                )
            open_piece = [] if end or step + t in dropped else [*open_piece, t]
        step += len(trajectory)
    return pieces


def test_drop_cuts_before_the_seam_and_goes_on_after_it(original):
    first, last, length = original.start[2], original.start[4] - 1, original.length
    assert length[2] > 12
    # In the middle, twice in a row, at the beginning and at the end of a trajectory; steps 5 and 90 land exactly.
    wrong = np.array([first, first + 4, first + 5, last, original.start[6] + 2])
    action = original.action.copy()
    action[wrong] = np.where(action[wrong] > 0, -1, 1)
    improved = with_seams(original, [5, 90, *wrong], action=action)
    before = improved.fingerprint
    found = audit(improved, sample=0)
    assert (found.replays.landing[np.isin(found.replays.step, wrong)] > 0.01).all()
    kept = drop_seams(improved, found, 0.01)
    expected = slow_drop(improved, set(wrong.tolist()))
    assert len(kept) == len(expected) == len(original) + 2  # two cuts leave something on both sides
    for ours, theirs in zip(kept, expected, strict=True):
        for name in ("obs", "action", "reward"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        assert ours.terminal == theirs.terminal
    assert np.flatnonzero(kept.seams.stitched).size == 2
    np.testing.assert_array_equal(kept.obs[kept.row], original.obs[kept.seams.source])
    assert kept.info["used_simulator"] is True
    assert kept.info["audit_drop_worse_than"] == 0.01
    assert kept.info["audit_dropped_steps"] == 5
    assert kept.info["improved_from"] == original.fingerprint
    assert improved.fingerprint == before
    assert "used_simulator" not in improved.info


def test_drop_keeps_everything_below_the_threshold(original):
    improved = jump(original, [(0, 4, 5, 8)])
    found = audit(improved, sample=0)
    kept = drop_seams(improved, found, float(found.replays.landing[0]) + 1e-6)
    assert kept.fingerprint == improved.fingerprint
    assert kept.info["used_simulator"] is True  # the simulator was asked
    twice = improved[np.array([0, 1, 0])]
    assert drop_seams(twice, audit(twice, sample=0), 0.0).transitions == twice.transitions - 2


def test_drop_needs_an_audit_of_all_seams_of_these_data(original):
    improved = with_seams(original, [5, 40, 80])
    with pytest.raises(InputError, match="audit with sample 0"):
        drop_seams(improved, audit(improved, sample=1), 0.1)
    with pytest.raises(InputError, match="audit of other data"):
        drop_seams(improved[:4], audit(improved), 0.1)
    with pytest.raises(InputError, match="not below 0"):
        drop_seams(improved, audit(improved), -1.0)
