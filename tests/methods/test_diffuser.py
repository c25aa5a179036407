"""Diffuser: noising, denoising and guidance against formulas in NumPy, windows that keep to their trajectory.

What it shares with every method is in test_offline.py.
"""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from trajstitch.methods.diffuser import Averaged, Diffuser, discounted_return, is_start
from trajstitch.models.unet import Conv, Norm, Sizes, UNet
from trajstitch.policies.diffusion import Diffusion, Sampling, climb, hold, schedule
from trajstitch.policies.planner import plan_all
from trajstitch.policies.policy import stack
from trajstitch.training.networks import Range, Scale
from worlds import random_dataset

DATA = dataclasses.replace(random_dataset(0, (6, 1, 9, 4, 7)), terminal=np.array([1, 1, 0, 0, 1], bool))
OBS = np.random.default_rng(1).normal(size=(2, 3))
draw = jax.jit(Diffusion.draw)


class Trust(eqx.Module):
    """In the denoiser's place: the clean window is a part of the noised one, and a little more each step."""

    part: float

    def __call__(self, window, step):
        return self.part * window + 0.1 * step


class Near(eqx.Module):
    """In the value's place: how near a window is to `goal`, less at later steps; its sum ties all together."""

    goal: float

    def __call__(self, window, step):
        return nearness(window, self.goal) / (1 + step)


def nearness(window, goal):
    return -((window - goal) ** 2).sum((-2, -1)) - 0.1 * window.sum((-2, -1)) ** 2


def simple(part=0.5, **sampling):
    """A planner with these for networks, of two actions and three observations."""
    scale, span = Scale(jnp.array([1.0, 2.0, 3.0]), jnp.array([2.0, 4.0, 0.5])), Range(-jnp.ones(2), jnp.ones(2))
    given = {"plan_horizon": 4, "diffusion_steps": 6, "samples": 9, "guide_scale": 0.02, **sampling}
    return Diffusion(span, Trust(part), Near(0.7), scale, Scale(jnp.array(5.0), jnp.array(2.0)), Sampling(**given))


def scaled(obs):
    return (obs - [1, 2, 3]) / [2, 4, 0.5]


# -- formulas -----------------------------------------------------------------------------------------------------


def test_denoising_is_bayes_rule():
    """p(x_{t-1} | x_t, x_0): the product of two Gaussians, by their precisions."""
    steps = 20
    cosine = [np.cos((t / steps + 0.008) / 1.008 * np.pi / 2) ** 2 for t in range(steps + 1)]
    beta = [min(1 - b / a, 0.999) for a, b in itertools.pairwise(cosine)]
    at, kept = schedule(steps), 1.0
    for t in range(steps):
        before, kept = kept, kept * (1 - beta[t])
        np.testing.assert_allclose((at.signal[t], at.noise[t]), (kept**0.5, (1 - kept) ** 0.5), rtol=1e-5)
        if t == 0:
            np.testing.assert_allclose((at.clean[t], at.noisy[t], at.variance[t]), (1, 0, 0), atol=1e-6)
            continue
        precision = (1 - beta[t]) / beta[t] + 1 / (1 - before)
        np.testing.assert_allclose(at.variance[t], 1 / precision, rtol=1e-4)
        np.testing.assert_allclose(at.clean[t], before**0.5 / (1 - before) / precision, rtol=1e-4)
        np.testing.assert_allclose(at.noisy[t], (1 - beta[t]) ** 0.5 / beta[t] / precision, rtol=1e-4)
    assert at.signal[-1] < 0.01  # nothing of the window is left


def test_the_loss_by_hand():
    config = Diffuser(plan_horizon=4, depth=1, diffusion_steps=6)
    rng = np.random.default_rng(0)
    model, key = simple(), jax.random.key(3)
    row = {"action": rng.uniform(-1, 1, (4, 2)), "obs": rng.normal(size=(4, 3)), "total": 9.0}
    average = jax.tree.map(lambda leaf: leaf + 1, model)  # which has no say
    loss, metrics = config.loss(Averaged(model, average), {k: jnp.asarray(v) for k, v in row.items()}, key)
    step_key, noise_key = jax.random.split(key)
    t = int(jax.random.randint(step_key, (), 0, 6))
    clean = np.concatenate([row["action"], scaled(row["obs"])], 1)
    at = schedule(6)
    noised = float(at.signal[t]) * clean + float(at.noise[t]) * np.asarray(jax.random.normal(noise_key, (4, 5)))
    noised[0, 2:] = clean[0, 2:]
    error = (0.5 * noised + 0.1 * t - clean) ** 2
    error[0, 2:] = 0
    np.testing.assert_allclose(metrics["action_loss"], error[0, :2].mean(), rtol=1e-4)
    error[0, :2] *= 10
    value = nearness(noised, 0.7) / (1 + t)
    np.testing.assert_allclose(metrics["denoising_loss"], error.mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["value_loss"], (value - (9 - 5) / 2) ** 2, rtol=1e-4)
    np.testing.assert_allclose(loss, metrics["denoising_loss"] + metrics["value_loss"], rtol=1e-6)


def test_a_plain_loop_draws_the_same_plans():
    first, later = jax.random.split(jax.random.key(0))
    keys, at = jax.random.split(later, 6), schedule(6)
    now = scaled(OBS)[:, None]
    x = np.array(jax.random.normal(first, (2, 9, 4, 5)))
    x[:, :, 0, 2:] = now
    for t in reversed(range(6)):
        x = float(at.clean[t]) * (0.5 * x + 0.1 * t) + float(at.noisy[t]) * x
        x[:, :, 0, 2:] = now
        for _ in range(2 if t >= 2 else 0):
            slope = (-2 * (x - 0.7) - 0.2 * x.sum((-2, -1), keepdims=True)) / (1 + t - 1)
            x = x + 0.02 * 2.0 * float(at.variance[t]) * slope  # 2.0: back in units of the reward
            x[:, :, 0, 2:] = now
        x = x + 0.5 * float(at.variance[t]) ** 0.5 * np.asarray(jax.random.normal(keys[t], x.shape))
        x[:, :, 0, 2:] = now
    np.testing.assert_allclose(draw(simple(), jnp.asarray(OBS), jax.random.key(0)), x, rtol=1e-4, atol=1e-5)


# -- guidance -----------------------------------------------------------------------------------------------------


def test_climbing_a_parabola():
    """Of slope 2·(goal - x) each step goes a known part of the way; the present state stays."""
    x, obs = jax.random.normal(jax.random.key(0), (2, 4, 5)), jnp.full((2, 3), 9.0)
    up = climb(lambda w: -jnp.sum((w - 3.0) ** 2, (-2, -1)), x, obs, jnp.array(0.1), 3)
    np.testing.assert_allclose(up, hold(3 + (x - 3) * (1 - 0.2) ** 3, obs), rtol=1e-5, atol=1e-5)


def test_guidance_moves_plans_towards_the_optimum():
    far = []
    for size in (0.0, 0.1):
        planner = dataclasses.replace(simple(1.0, guide_scale=size), value=Near(3.0))
        plans = draw(planner, jnp.asarray(OBS), jax.random.key(0))
        far.append(-float(nearness(plans, 3.0).mean()))
    assert far[0] > 1.1 * far[1]


def test_the_plan_of_the_highest_value_is_taken():
    planner, key = simple(), jax.random.key(4)
    plans = np.asarray(draw(planner, jnp.asarray(OBS), key))
    best = nearness(plans, 0.7).argmax(1)
    assert best.any()  # not simply the first
    action, memory = plan_all(stack([planner]), (), jnp.asarray(OBS)[None], jnp.ones((1, 2), bool), key)
    np.testing.assert_allclose(action[0], np.clip(plans[[0, 1], best, 0, :2], -1, 1), rtol=1e-4, atol=1e-5)
    assert memory == ()


# -- inpainting ---------------------------------------------------------------------------------------------------


def test_every_plan_starts_in_the_present_state():
    """Exactly, though the denoiser says otherwise; and the same key draws the same plans."""
    obs = jnp.asarray(OBS)
    plans, again, other = (np.asarray(draw(simple(), obs, jax.random.key(k))) for k in (0, 0, 1))
    np.testing.assert_allclose(plans[:, :, 0, 2:], np.repeat(scaled(OBS)[:, None], 9, 1), rtol=1e-6)
    assert (plans[:, :, 0, 2:] == plans[:, :1, 0, 2:]).all()
    np.testing.assert_array_equal(plans, again)
    assert np.abs(plans - other)[:, :, 1:].min() > 0
    assert np.abs(plans[:, 0] - plans[:, 1])[:, 1:].min() > 0  # no plan is another's copy


# -- windows ------------------------------------------------------------------------------------------------------


def test_windows_keep_to_their_trajectory():
    table = Diffuser(plan_horizon=4, depth=1).table(DATA)
    rows = {name: jnp.asarray(column) for name, column in table.items() if name != "columns"}
    windows = table["columns"].windows(rows, 4)
    middle = (DATA.action.min(0) + DATA.action.max(0)) / 2
    expected = []
    for m, episode in enumerate(DATA):
        steps = len(episode)
        fits = episode.terminal or steps < 4
        for t in range(steps if fits else steps - 3):
            action = np.concatenate([episode.action[t:], np.tile(middle, (4, 1))])[:4]
            obs = np.concatenate([episode.obs[t:], np.tile(episode.obs[-1], (4, 1))])[:4]
            expected.append((DATA.start[m] + t, action, obs))
    assert [start for start, _, _ in expected] == rows["start"].tolist()
    np.testing.assert_allclose(windows["action"], [action for _, action, _ in expected], rtol=1e-6)
    np.testing.assert_array_equal(windows["obs"], [obs for _, _, obs in expected])


def test_where_a_life_was_cut_no_window_is_padded():
    """The nine-step one was; so was the four-step one, which is too short for a window of eight."""
    assert np.add.reduceat(is_start(DATA, 4), DATA.start[:-1]).tolist() == [6, 1, 6, 1, 7]
    assert np.add.reduceat(is_start(DATA, 8), DATA.start[:-1]).tolist() == [6, 1, 2, 4, 7]


def test_returns_by_a_plain_loop():
    total = discounted_return(DATA, 0.9, 5.0)
    for m, episode in enumerate(DATA):
        reward = episode.reward.astype(float)
        reward[-1] -= 5 * episode.terminal
        for t in range(len(episode)):
            expected = sum(0.9**k * r for k, r in enumerate(reward[t:]))
            np.testing.assert_allclose(total[DATA.start[m] + t], expected, rtol=1e-5, atol=1e-6)


# -- training -----------------------------------------------------------------------------------------------------


def test_the_average_follows_and_is_played():
    first, config = simple(), Diffuser()
    now = jax.tree.map(lambda leaf: leaf + 1.0, first)
    model = config.after(config.after(Averaged(now, first)))
    assert model.now is now
    for was, average in zip(*map(jax.tree.leaves, (first, config.policy(model))), strict=True):
        np.testing.assert_allclose(average, was + 1 - 0.995**2, rtol=1e-6)


# -- layers -------------------------------------------------------------------------------------------------------


def test_a_convolution_by_hand():
    x = np.random.default_rng(0).normal(size=(2, 6, 3))
    for kernel, stride in ((5, 1), (3, 2)):
        conv = Conv.init(3, 4, jax.random.key(0), kernel, stride)
        weight = np.asarray(conv.layer.weight).reshape(4, kernel, 3)
        out = conv(jnp.asarray(x))
        assert out.shape == (2, 6 // stride, 4)
        for b, t, c in np.ndindex(2, 6 // stride, 4):
            near = [(k, t * stride + k - kernel // 2) for k in range(kernel)]
            total = sum(weight[c, k] @ x[b, at] for k, at in near if 0 <= at < 6) + conv.layer.bias[c]
            np.testing.assert_allclose(out[b, t, c], total, rtol=1e-4, atol=1e-5)


def test_a_group_of_channels_is_normalised_over_time():
    x = 3 + 2 * np.random.default_rng(0).normal(size=(2, 6, 16))
    out = Norm(jnp.full(16, 2.0), jnp.ones(16))(jnp.asarray(x))
    for b, g in np.ndindex(2, 8):
        part = x[b, :, 2 * g : 2 * g + 2]
        expected = 1 + 2 * (part - part.mean()) / part.std()
        np.testing.assert_allclose(out[b, :, 2 * g : 2 * g + 2], expected, rtol=1e-3, atol=1e-4)


def test_every_step_of_a_plan_sees_every_other_and_the_diffusion_step():
    rng = np.random.default_rng(0)
    shapes = eqx.filter_eval_shape(UNet.init, Sizes(5, 8, 2, 1), jax.random.key(0))
    net = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32) / 3, shapes)
    windows = np.tile(rng.normal(size=(4, 5)), (5, 1, 1))
    windows[np.arange(1, 5), np.arange(4)] += 1  # the first as it is, the others with one step changed
    early, late = (np.asarray(jax.jit(net.__call__)(jnp.asarray(windows), jnp.array(k))) for k in (0.0, 2.0))
    assert (np.abs(late[1:] - late[0]).max(-1) > 1e-4).all()
    assert (np.abs(late - early).max(-1) > 1e-4).all()
