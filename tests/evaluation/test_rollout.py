"""Playing, recording and scoring, against a counting world with known episodes and against Gymnasium itself."""

import json

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.cli.data import _share
from trajstitch.errors import InputError
from trajstitch.evaluation import envs
from trajstitch.evaluation.collect import Share, _split, collect, collect_mixture
from trajstitch.evaluation.envs import env_options
from trajstitch.evaluation.normalise import reference_scores
from trajstitch.evaluation.rollout import actor, play
from trajstitch.evaluation.scores import Scores, evaluate
from trajstitch.evaluation.stats import interval, spread
from trajstitch.jobs.score import RunScores, ScoreConfig, score_run
from trajstitch.jobs.train import train_run
from trajstitch.policies.planner import ActionPlanner
from trajstitch.policies.policy import Policy, stack
from trajstitch.policies.policy_files import load_policy, save_policy
from trajstitch.training.networks import MLP, Linear, Range, Scale


class Counting:
    """Episode of seed s lasts 1 + s % 5 steps; observation (seed, steps done), reward 10·seed + step."""

    id, count, obs_dim, horizon = "Counting", 3, 2, 4
    action_low, action_high = np.array([-1.0]), np.array([1.0])

    def __init__(self):
        self.seed, self.clock, self.stepped = np.zeros(3, int), np.zeros(3, int), 0

    def reset(self, index, seed):
        self.seed[index], self.clock[index] = seed, 0
        return np.stack([self.seed[index], self.clock[index]], 1).astype(float)

    def step(self, action, running=None):
        self.clock += running
        self.stepped += running.sum()
        terminal = running & (self.clock >= 1 + self.seed % 5)
        timeout = running & (self.clock >= self.horizon)
        obs = np.stack([self.seed, self.clock], 1).astype(float)
        return envs.Step(obs, 10.0 * self.seed + self.clock, terminal, timeout)

    def close(self):
        pass


def test_every_seed_is_played_once_and_whole():
    env = Counting()
    episodes = dict(play(env, lambda obs, begun: obs[:, 1:] / 10, range(11)))
    assert sorted(episodes) == list(range(11))
    for seed, episode in episodes.items():
        steps = min(1 + seed % 5, 4)
        np.testing.assert_array_equal(episode.obs, [[seed, t] for t in range(steps + 1)])
        np.testing.assert_allclose(episode.action[:, 0], np.arange(steps) / 10)
        np.testing.assert_array_equal(episode.reward, [10 * seed + t for t in range(1, steps + 1)])
        assert episode.terminal == (seed % 5 < 4)
    assert env.stepped == sum(map(len, episodes.values()))  # resting environments were not stepped


def test_who_acts_is_told_where_an_episode_has_just_begun():
    """Every step of every episode is seen once, and its first one alone is a beginning."""
    seen = []

    def act(obs, begun):
        seen.extend(zip(obs[:, 0], obs[:, 1], begun, strict=True))
        return np.zeros((3, 1))

    episodes = dict(play(Counting(), act, range(1, 12)))
    played = [(i + 1, t, t == 0) for i, episode in episodes.items() for t in range(len(episode))]
    assert {x for x in seen if x[2]} == {x for x in played if x[2]}
    assert set(played) <= set(seen)


def policy_for(env_id: str, seed: int = 0, head="tanh-gaussian") -> Policy:
    env = envs.make(env_id, 1)
    scale = Scale.unit(env.obs_dim)
    ends = Range(jnp.asarray(env.action_low), jnp.asarray(env.action_high))
    policy = Policy.init(scale, ends, jax.random.key(seed), head, width=16)
    env.close()
    return policy


@pytest.fixture(scope="module")
def hopper():
    return policy_for("Hopper-v5")


def gymnasium_return(env_id, policy, seed):
    """One episode in a plain Gymnasium loop."""
    env = gymnasium.make(env_id)
    obs, _ = env.reset(seed=seed)
    total, steps, done = 0.0, 0, False
    while not done:
        action = np.asarray(policy.act(jnp.asarray(obs, jnp.float32)))
        obs, reward, terminal, timeout, _ = env.step(action)
        total, steps, done = total + reward, steps + 1, terminal or timeout
    env.close()
    return total, steps


@pytest.mark.parametrize("env_id", ["Hopper-v5", "InvertedPendulum-v5"])
def test_scores_are_those_of_a_plain_gymnasium_loop(env_id):
    members = [policy_for(env_id, seed) for seed in range(2)]
    scores = evaluate(stack(members), env_id, episodes=3, seed=5)
    assert scores.returns.shape == (2, 3)
    for p, member in enumerate(members):
        for e in range(3):
            total, steps = gymnasium_return(env_id, member, 5 + e)
            assert scores.length[p, e] == steps
            assert scores.returns[p, e] == pytest.approx(total, rel=1e-3)


def test_normalised_scores():
    returns = np.array([[-20.272305, 3234.3], [3234.3, 3234.3]])
    scores = Scores("Hopper-v4", "d4rl", returns, np.ones((2, 2), int), reference_scores("Hopper-v4"))
    assert scores.normalised == pytest.approx(75)
    assert scores.summary()["normalised"]["per_seed"] == pytest.approx([50, 100])
    unknown = Scores("Mine-v0", "gymnasium", returns, np.ones((2, 2), int), reference_scores("Mine-v0"))
    assert np.isnan(unknown.normalised)
    assert unknown.summary()["normalised"] is None


def test_reference_scores_of_the_data_come_first():
    assert reference_scores("Hopper-v5") == (-20.272305, 3234.3)
    assert reference_scores("HalfCheetah-v4") == (-280.178953, 12135.0)
    assert reference_scores("Walker2d-v2") == (1.629008, 4592.3)
    assert reference_scores("Hopper-v5", {"ref_min_score": 0.0, "ref_max_score": 10.0}) == (0.0, 10.0)
    assert reference_scores("Mine-v0", {"ref_max_score": 10.0}) is None
    assert reference_scores("Mine-v0", {"ref_min_score": 0.0}) is None


def test_bootstrap_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for i in range(200):
        scores = rng.normal(size=(20, 1)) + rng.normal(size=(20, 10))
        low, high = interval(scores, draws=300, seed=i)
        hits += low < 0 < high
    assert 0.88 <= hits / 200 <= 1
    assert interval(np.full((3, 4), 7.0)) == (7.0, 7.0)
    assert spread(np.array([[1.0, 3.0], [5.0, 3.0]])) == pytest.approx(np.std([2, 4], ddof=1))
    assert spread(np.ones((1, 5))) is None


# -- recording ----------------------------------------------------------------------------------------------------


def test_collect_is_reproducible_and_whole(hopper, tmp_path):
    data = collect(hopper, "Hopper-v5", 2000, seed=3)
    again = collect(hopper, "Hopper-v5", 2000, seed=3)
    other = collect(hopper, "Hopper-v5", 2000, seed=4)
    assert data.fingerprint == again.fingerprint != other.fingerprint
    assert data.transitions >= 2000 > data.transitions - data.length[-1]
    assert (data.terminal | (data.length == 1000)).all()
    assert data.info["env_id"] == "Hopper-v5"


def test_collect_keeps_the_first_episodes_not_the_shortest(hopper):
    """The first k episodes of a longer recording are the recording."""
    short = collect(hopper, "Hopper-v5", 1500, seed=1)
    long = collect(hopper, "Hopper-v5", 4000, seed=1)
    assert long[: len(short)].fingerprint == short.fingerprint


def test_recorded_steps_are_the_simulators(hopper):
    """Played again one by one in Gymnasium, each recorded action leads to the recorded successor."""
    data = collect(hopper, "Hopper-v5", 300, seed=0)
    env = gymnasium.make("Hopper-v5").unwrapped
    env.reset(seed=0)
    for trajectory in list(data)[:3]:
        for t in range(len(trajectory)):
            obs = trajectory.obs[t].astype(float)
            env.set_state(np.concatenate([[0], obs[:5]]), obs[5:])
            successor, reward, *_ = env.step(trajectory.action[t])
            np.testing.assert_allclose(trajectory.obs[t + 1], successor, atol=2e-3)
            assert trajectory.reward[t] == pytest.approx(reward, abs=2e-3)


def test_ways_to_act(hopper):
    plain = collect(hopper, "Hopper-v5", 200, deterministic=True)
    expected = np.stack([hopper.act(obs) for obs in plain.obs[plain.row[:50]]])
    np.testing.assert_allclose(plain.action[:50], expected, rtol=1e-4, atol=1e-5)
    noisy = collect(hopper, "Hopper-v5", 4000, deterministic=True, noise=0.1)
    base = np.asarray(jax.vmap(hopper.act)(jnp.asarray(noisy.obs[noisy.row])))
    inside = np.abs(base) < 0.5
    assert (noisy.action - base)[inside].std() == pytest.approx(0.1, rel=0.1)
    uniform = collect("random", "Hopper-v5", 1000)
    assert uniform.action.std() == pytest.approx(1 / np.sqrt(3), rel=0.05)


def test_mixtures(hopper, tmp_path):
    save_policy(hopper, tmp_path / "a.npz")
    data = collect_mixture([(str(tmp_path / "a.npz"), 0.75), ("random", 0.25)], "Hopper-v5", 2000, seed=0)
    first = collect(tmp_path / "a.npz", "Hopper-v5", 1500, seed=0)
    assert data[: len(first)].fingerprint == first.fingerprint
    assert 500 <= data.transitions - first.transitions < 1500
    assert data.info["policy"] == "a.npz:0.75 random:0.25"
    for shares in ([("random", 0.5)], [("random", 1.5), ("random", -0.5)], []):
        with pytest.raises(InputError, match="add up to 1"):
            collect_mixture(shares, "Hopper-v5", 100)


def test_a_mixture_by_episodes_has_a_noise_of_its_own_for_each_part(hopper, tmp_path):
    save_policy(hopper, tmp_path / "a.npz")
    name = str(tmp_path / "a.npz")
    shares = [(name, 0.7, 0.4), Share(name, 0.2, 0.0), Share(name, 0.1)]
    data = collect_mixture(shares, "Hopper-v5", episodes=20, deterministic=True, noise=0.1, seed=0)
    assert len(data) == 14 + 4 + 2
    base = np.asarray(jax.vmap(hopper.act)(jnp.asarray(data.obs[data.row])))
    ends = data.start[[0, 14, 18, 20]]
    for i, noise in enumerate((0.4, 0.0, 0.1)):
        part = slice(ends[i], ends[i + 1])
        inside = np.abs(base[part]) < 0.2  # where clipping is rare
        assert (data.action - base)[part][inside].std() == pytest.approx(noise, rel=0.2, abs=1e-5)
    assert data.info["policy"] == "a.npz:0.7:0.4 a.npz:0.2:0 a.npz:0.1"
    few = collect_mixture([(name, 0.99), (name, 0.01)], "Hopper-v5", episodes=10, seed=0)
    assert len(few) == 10  # at least one of each part
    assert few.info["policy"] == "a.npz:0.99 a.npz:0.01"


@pytest.mark.parametrize(
    ("asked", "shares", "counts"),
    [
        (10, [1 / 3] * 3, [4, 3, 3]),
        (10, [0.25, 0.25, 0.5], [3, 2, 5]),
        (7, [0.1, 0.35, 0.55], [1, 2, 4]),
        (100, [0.29, 0.71], [29, 71]),
        (3, [0.998, 0.001, 0.001], [1, 1, 1]),
        (10, [0.99, 0.01], [9, 1]),
    ],
)
def test_the_parts_of_a_mixture_add_up(asked, shares, counts):
    assert _split(asked, [Share("a.npz", share) for share in shares]) == counts


def test_a_part_is_written_with_its_share_and_its_noise():
    assert _share("a.npz:0.5:0.1") == Share("a.npz", 0.5, 0.1)
    assert _share("random:0.5") == Share("random", 0.5)
    for text in ("a.npz", "a.npz:most", "a.npz:0.5:loud"):
        with pytest.raises(InputError, match=f"--mix {text}: write FILE:SHARE"):
            _share(text)


def test_mixtures_that_cannot_be():
    for noise, sentence in ((0.1, "takes no noise"), (float("nan"), "noise must be 0 or more, not nan")):
        with pytest.raises(InputError, match=sentence):  # before the first part, whose file does not exist
            collect_mixture([("none.npz", 0.5), ("random", 0.5, noise)], "Hopper-v5", 100)
    with pytest.raises(InputError, match="takes no noise"):
        collect("random", "Hopper-v5", 10, noise=0.1)
    with pytest.raises(InputError, match="2 policies cannot share 1; ask for at least 2"):
        collect_mixture([("random", 0.5), ("random", 0.5)], "Hopper-v5", episodes=1)


def test_the_noise_of_a_mixture_is_not_for_its_random_part(hopper, tmp_path):
    save_policy(hopper, tmp_path / "a.npz")
    shares = [(str(tmp_path / "a.npz"), 0.5), ("random", 0.5)]
    some = collect_mixture(shares, "Hopper-v5", episodes=2, noise=0.1, seed=0)
    assert some[1:].fingerprint == collect("random", "Hopper-v5", episodes=1, seed=1000).fingerprint


def test_collect_counts_episodes_or_steps(hopper):
    five = collect(hopper, "Hopper-v5", episodes=5, seed=1)
    assert len(five) == 5
    three = collect(hopper, "Hopper-v5", episodes=3, deterministic=True, seed=1, together=2)
    more = collect(hopper, "Hopper-v5", episodes=7, deterministic=True, seed=1, together=2)
    assert more[:3].fingerprint == three.fingerprint
    for words in ({}, {"steps": 3, "episodes": 3}):
        with pytest.raises(InputError, match="give either steps or episodes"):
            collect(hopper, "Hopper-v5", **words)
    with pytest.raises(InputError, match="episodes must be at least 1, not 0"):
        collect(hopper, "Hopper-v5", episodes=0)


def test_stacked_policies_take_turns_in_a_recording(hopper):
    three = stack([hopper, policy_for("Hopper-v5", 1), policy_for("Hopper-v5", 2)])
    data = collect(three, "Hopper-v5", 500, deterministic=True)
    assert data.transitions >= 500
    np.testing.assert_allclose(data[0].action[0], hopper.act(jnp.asarray(data[0].obs[0])), rtol=1e-4, atol=1e-5)


def test_the_datas_own_environment_is_used():
    """A recorded spec brings its time limit and arguments along; another id does not inherit them."""
    spec = json.dumps({"kwargs": {"reset_noise_scale": 0.0}, "max_episode_steps": 7})
    info = {"env_id": "InvertedPendulum-v5", "env_spec": spec}
    policy = policy_for("InvertedPendulum-v5")
    scores = evaluate(policy, "InvertedPendulum-v5", episodes=4, info=info)
    assert scores.length.max() <= 7
    assert np.ptp(scores.returns) == 0  # without noise all starts are one
    assert env_options("Hopper-v5", info) == {"horizon": None}
    assert env_options("InvertedPendulum-v5", info, env_horizon=3)["horizon"] == 3
    assert env_options("X", {"env_id": "X", "env_horizon": 9}) == {"horizon": 9}


def test_what_cannot_be_played(hopper):
    with pytest.raises(InputError, match="11 observations and 3 actions, but Walker2d-v5 has 17 and 6"):
        evaluate(hopper, "Walker2d-v5")
    with pytest.raises(InputError, match="episodes must be"):
        evaluate(hopper, "Hopper-v5", episodes=0)
    with pytest.raises(InputError, match="steps must be"):
        collect(hopper, "Hopper-v5", 0)
    with pytest.raises(InputError, match="noise must be"):
        collect(hopper, "Hopper-v5", 10, noise=-1)


# -- judging ------------------------------------------------------------------------------------------------------


def test_last_and_best():
    returns = np.array([[[1.0, 1.0], [9.0, 7.0]], [[5.0, 5.0], [2.0, 2.0]], [[4.0, 4.0], [3.0, 3.0]]])
    scored = RunScores(ScoreConfig("Hopper-v5"), [10, 20, 30], returns, returns.astype(int), None)
    np.testing.assert_array_equal(scored.last.returns, [[4, 4], [3, 3]])
    np.testing.assert_array_equal(scored.best.returns, [[5, 5], [9, 7]])
    assert scored.best_steps == [20, 10]


def test_a_run_is_judged_checkpoint_by_checkpoint_and_once(tmp_path, monkeypatch):
    data = collect("random", "InvertedPendulum-v5", 300)
    scoring = ScoreConfig("InvertedPendulum-v5", episodes=2)
    sizes = {"steps": 40, "every": 20, "seeds": 2, "width": 8, "batch": 16}
    run, scored = train_run("bc", data, tmp_path / "run", scoring=scoring, **sizes)
    assert scored.step == [20, 40]
    assert scored.returns.shape == (2, 2, 2)
    for c, step in enumerate(scored.step):
        scores = evaluate(run.checkpoint(step), scoring.env_id, episodes=2, seed=scoring.seed)
        np.testing.assert_array_equal(scored.returns[c], scores.returns)
    best = load_policy(run.path / "policy-best.npz")
    last = load_policy(run.path / "policy.npz")
    assert best.count == last.count == 2
    monkeypatch.setattr("trajstitch.jobs.score.evaluate", lambda *a, **k: pytest.fail("scored again"))
    again = score_run(run, scoring)
    np.testing.assert_array_equal(again.returns, scored.returns)


def test_an_environment_that_does_not_fit_is_said_before_training(tmp_path):
    data = collect("random", "InvertedPendulum-v5", 50)
    with pytest.raises(InputError, match="the data have 4 observations and 1 actions, but Hopper-v5 has 11 and 3"):
        train_run("bc", data, tmp_path / "run", scoring=ScoreConfig("Hopper-v5"), steps=5)
    assert not (tmp_path / "run").exists()


def test_a_hand_made_policy_keeps_the_pendulum_up():
    """A known answer: the balancing gain scores the full 1000, the opposite one falls at once."""
    gain = jnp.array([[1.0, 4.0, 1.5, 1.0]])
    ends = jnp.array([3.0])
    good, bad = (
        Policy(Scale.unit(4), MLP((Linear(sign * gain, jnp.zeros(1)),)), Range(-ends, ends), "tanh")
        for sign in (1, -1)
    )
    scores = evaluate(stack([good, bad]), "InvertedPendulum-v5", episodes=4)
    assert scores.length[0].min() > 200
    assert scores.length[1].max() < 50


class Dice(ActionPlanner):
    """Plans by chance alone."""

    obs_dim = 2

    def blank(self, episodes):
        return jnp.zeros((self.count, episodes))

    def plan(self, memory, obs, begun, key):
        return jax.random.uniform(key, (len(obs), 1)), memory


def test_planners_draw_anew_at_every_step():
    act = actor(Dice(Range(jnp.zeros(1), jnp.ones(1))), Counting(), seed=1)
    first, second = (act(np.zeros((3, 2), np.float32), np.zeros(3, bool)) for _ in range(2))
    assert (first != second).all()


def test_policies_draw_anew_at_every_step_if_asked(hopper):
    env = envs.make("Hopper-v5", 4)
    obs = np.random.default_rng(0).normal(size=(4, 11)).astype(np.float32)
    for seed, same in ((None, True), (1, False)):
        act = actor(hopper, env, seed=seed)
        first, second = (act(obs, np.ones(4, bool)) for _ in range(2))
        assert (first == second).all() == same
    env.close()
    likely, drawn, again, other = (
        evaluate(hopper, "Hopper-v5", episodes=2, stochastic=stochastic, seed=seed).returns
        for stochastic, seed in ((False, 0), (True, 0), (True, 0), (True, 7))
    )
    assert (likely != drawn).all()
    assert (drawn == again).all()
    assert (drawn != other).all()


def test_noise_stays_within_the_range_of_actions():
    policy = Policy.init(
        Scale.unit(2), Range(jnp.array([-1.0]), jnp.array([1.0])), jax.random.key(0), "tanh", 4, 1
    )
    act = actor(policy, Counting(), noise=50.0)
    action = np.array([act(np.zeros((3, 2), np.float32), np.zeros(3, bool)) for _ in range(5)])
    assert np.abs(action).max() == 1
    assert (np.abs(action) == 1).mean() > 0.5


def test_actor_spreads_policies_over_environments(hopper):
    env = envs.make("Hopper-v5", 4)
    pair = stack([hopper, policy_for("Hopper-v5", 1)])
    obs = np.random.default_rng(0).normal(size=(4, 11)).astype(np.float32)
    action = actor(pair, env)(obs, np.ones(4, bool))
    np.testing.assert_allclose(action[0], hopper.act(jnp.asarray(obs[0])), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        action[3], policy_for("Hopper-v5", 1).act(jnp.asarray(obs[3])), rtol=1e-5, atol=1e-6
    )
    env.close()
