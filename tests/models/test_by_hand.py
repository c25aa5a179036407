"""Losses and inputs of the models worked out by hand on linear networks, and who is chosen and held out."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trajstitch.data import step_table
from trajstitch.models import value as value_module
from trajstitch.models.dynamics import DynamicsConfig, train_elites
from trajstitch.models.inverse import CVAE, InverseConfig, InverseInputs, Regression, train_inverse
from trajstitch.models.reward import (
    VAE,
    WGAN,
    Gaussian,
    RewardConfig,
    RewardInputs,
    _generator_loss,
    train_reward,
)
from trajstitch.models.value import ValueConfig, train_value
from trajstitch.training.loop import Fit, train_best
from trajstitch.training.networks import MLP, Linear, Range, Scale
from worlds import random_dataset

KEY = jax.random.key(3)


def linear(weight, bias):
    """A network of one layer: weight @ x + bias."""
    return MLP((Linear(jnp.array(weight, jnp.float32), jnp.array(bias, jnp.float32)),))


def scale(mean, std):
    return Scale(jnp.array(mean, jnp.float32), jnp.array(std, jnp.float32))


# -- inputs ------------------------------------------------------------------------------------------------------

OBS, NEXT = jnp.array([3.0, 1.0]), jnp.array([7.0, 2.0])
STATES, CHANGES = scale([1, 1], [2, 4]), scale([0, 1], [8, 2])


def test_models_see_the_state_and_its_change():
    inverse = InverseInputs(STATES, CHANGES)
    np.testing.assert_allclose(inverse(OBS, NEXT), [1, 0, 0.5, 0])
    reward = RewardInputs(STATES, scale([1], [3]), CHANGES, scale([0], [1]))
    np.testing.assert_allclose(reward(OBS, jnp.array([7.0]), NEXT), [1, 0, 2, 0.5, 0])


# -- inverse -----------------------------------------------------------------------------------------------------

RANGE = Range(jnp.array([-2.0, 0.0]), jnp.array([2.0, 4.0]))  # 2·tanh(x), and 2 more in the second column


def test_the_error_of_a_regression():
    model = Regression(linear(np.zeros((2, 4)), [0, np.arctanh(0.5)]), InverseInputs(STATES, CHANGES), RANGE)
    np.testing.assert_allclose(model(OBS, NEXT), [0, 3], rtol=1e-5)
    error = model.error(OBS, NEXT, jnp.array([1.0, 0.0]), KEY)
    np.testing.assert_allclose(error, (1 + 9) / 2, rtol=1e-5)


def test_the_error_of_a_cvae():
    """Half of the squared error and of the divergence of N(μ, σ²) from N(0, 1), each a mean."""
    mean, log_std = np.array([0.5, -1.0]), np.array([0.2, -0.3])
    encoder = linear(np.zeros((4, 6)), [*mean, *log_std])
    decoder = linear([[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1]], [0, 0])  # what is drawn is the action
    model = CVAE(encoder, decoder, InverseInputs(STATES, CHANGES), RANGE, sample=False)
    z = mean + np.exp(log_std) * np.asarray(jax.random.normal(KEY, (2,)))
    action = np.array([1.0, 0.0])
    squared = np.mean((2 * np.tanh(z) + [0, 2] - action) ** 2)
    divergence = np.mean(0.5 * (mean**2 + np.exp(log_std) ** 2 - 1) - log_std)
    error = model.error(OBS, NEXT, jnp.asarray(action, jnp.float32), KEY)
    np.testing.assert_allclose(error, 0.5 * (squared + divergence), rtol=1e-5)
    np.testing.assert_allclose(model.actions(OBS[None], NEXT[None], KEY), [[0, 2]])


# -- reward ------------------------------------------------------------------------------------------------------

GIVEN = RewardInputs(STATES, scale([1], [3]), CHANGES, scale([10], [5]))
ROW = {"obs": OBS, "action": jnp.array([7.0]), "next_obs": NEXT, "reward": jnp.array(25.0)}  # 3 when scaled
X = np.array([1, 0, 2, 0.5, 0])


def test_the_errors_of_gaussian_and_vae():
    gaussian = Gaussian(GIVEN, linear([[1, 0, 0, 0, 0], np.zeros(5)], [1, 0.7]))  # mean 2, log std 0.7
    expected = 0.5 * ((3 - 2) / np.exp(0.7)) ** 2 + 0.7
    np.testing.assert_allclose(gaussian.error(jnp.asarray(X), jnp.array([3.0]), KEY), expected, rtol=1e-5)
    np.testing.assert_allclose(
        gaussian.rewards(OBS[None], ROW["action"][None], NEXT[None], KEY), [10 + 5 * 2], rtol=1e-5
    )
    vae = VAE(GIVEN, linear([[0, 0, 0, 0, 0, 1]], [0]), linear(np.zeros((2, 6)), [0.4, -0.2]))
    z = 0.4 + np.exp(-0.2) * float(jax.random.normal(KEY, (1,))[0])
    expected = (z - 3) ** 2 + 0.5 * (0.4**2 + np.exp(-0.4) - 1) + 0.2
    np.testing.assert_allclose(vae.error(jnp.asarray(X), jnp.array([3.0]), KEY), expected, rtol=1e-5)


def wgan():
    """The critic's score is the first input and four times the reward; what is generated is always -1."""
    return WGAN(GIVEN, linear(np.zeros((1, 6)), [-1]), linear([[1, 0, 0, 0, 0, 4]], [0.5]))


def test_the_two_losses_of_the_wgan():
    """The critic lowers what is generated, raises what is real, and pays for a slope other than 1."""
    model, config = wgan(), RewardConfig("wgan", penalty=2.0)
    fake, real = 1 - 4 + 0.5, 1 + 4 * 3 + 0.5
    np.testing.assert_allclose(config._critic_loss(model, ROW, KEY), fake - real + 2 * (4 - 1) ** 2, rtol=1e-5)
    np.testing.assert_allclose(_generator_loss(model, ROW, KEY), -fake, rtol=1e-5)


class Vertical(WGAN):
    """Its critic's slope is infinite where it is, so a loss that asks for it is not finite."""

    def scoring(self, x, reward):
        return 4 * reward[0] + jnp.sqrt(jnp.abs(0 * reward[0]))


def test_without_a_penalty_no_slope_is_computed():
    model = Vertical(GIVEN, linear(np.zeros((1, 6)), [-1]), linear([[1, 0, 0, 0, 0, 4]], [0.5]))
    np.testing.assert_allclose(RewardConfig("wgan", penalty=0.0)._critic_loss(model, ROW, KEY), -4 - 12, rtol=1e-5)
    assert not np.isfinite(RewardConfig("wgan", penalty=1.0)._critic_loss(model, ROW, KEY))


def test_the_critic_pays_for_the_squares_of_its_weights():
    """The gradient of λ‖w‖² is 2λw; before Adam's own scaling."""
    model, config = wgan(), RewardConfig("wgan", decay=0.25)
    part, adam = model.critic, config._adam("critic")
    _, state = adam.update(jax.tree.map(jnp.zeros_like, part), adam.init(part), part)
    weight = part.layers[0].weight
    mean = optax.tree_utils.tree_get(state, "mu").layers[0].weight
    np.testing.assert_allclose(mean, 0.5 * 2 * 0.25 * weight, rtol=1e-6)  # its first moment: half, as b1 is 0.5


def test_the_steps_of_the_wgan():
    """Several of the critic, with decay, to one of the generator, without."""
    config, model = RewardConfig("wgan", critic_steps=3), wgan()
    batch = {name: jnp.stack([column] * 2) for name, column in ROW.items()}
    _, state, _ = config.step(model, config.begin(model), batch, KEY, 0)
    counts = {
        name: [int(leaf) for leaf in jax.tree.leaves(part) if leaf.dtype == jnp.int32]
        for name, part in state.items()
    }
    assert counts == {"generator": [1], "critic": [3]}
    for name, moves in (("critic", True), ("generator", False)):
        part, adam = getattr(model, name), config._adam(name)
        update, _ = adam.update(jax.tree.map(jnp.zeros_like, part), adam.init(part), part)
        assert any(np.any(leaf) for leaf in jax.tree.leaves(update)) == moves


# -- who is chosen and held out ----------------------------------------------------------------------------------


def rows(seed, many=30):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(many, 2)).astype(np.float32) for name in ("given", "change")}


def test_elites_are_chosen_by_the_held_out_loss_of_their_weights():
    """In a world of chance, where neither the training loss nor the last held-out loss tells who is best."""
    config = DynamicsConfig(members=6, elites=3, width=4, depth=1, patience=0, fit=Fit(40, 8, 0.1))
    train, held_out = rows(0), rows(1)
    elites, history = train_elites(train, held_out, config, seed=0)
    members, _ = train_best(config, train, held_out, range(6))
    best, by_training, by_last = (
        np.sort(np.argsort(loss)[:3]).tolist()
        for loss in (np.min(history.held_out, 0), np.min(history.train, 0), history.held_out[-1])
    )
    assert best not in (by_training, by_last)
    for kept, all_of_them in zip(jax.tree.leaves(elites), jax.tree.leaves(members), strict=True):
        np.testing.assert_array_equal(kept, all_of_them[np.array(best)])
    weight = np.asarray(members.net.layers[0].weight)
    assert len({one.tobytes() for one in weight}) == 6


@pytest.mark.parametrize("patience", [0, 1])
def test_every_model_has_the_patience_it_is_given(patience):
    """Numbers that mean nothing: sooner or later a check is worse than the best."""
    data, fit = random_dataset(0, (20, 20)), Fit(40, 4, 0.05)
    dynamics = DynamicsConfig(members=1, elites=1, width=4, depth=1, patience=patience, fit=fit)
    checks = [
        len(train_elites(rows(0), rows(1), dynamics, 0)[1].step),
        len(train_inverse(data[:1], data[1:], InverseConfig(width=4, patience=patience, fit=fit), 0)[1].step),
        len(train_reward(data[:1], data[1:], RewardConfig(width=4, patience=patience, fit=fit), 0)[1].step),
    ]
    assert (np.array(checks) < 20).all() if patience else checks == [20] * 3


def test_the_value_is_not_trained_on_what_it_is_checked_by(monkeypatch):
    """One of twenty rows is held out; a last value is where the next one begins."""
    given = []
    monkeypatch.setattr(
        value_module,
        "train_best",
        lambda *words, **more: given.append((words, more)) or ({"w": np.ones((1, 2))}, None),
    )
    table = step_table(random_dataset(0, (40,)))
    model, _ = train_value(table, ValueConfig(), 0, model={"w": np.zeros(2)})
    (_, train, held_out, _, _), more = given[0]
    together = np.concatenate([train["reward"], held_out["reward"]])
    np.testing.assert_array_equal(np.sort(together), np.sort(table["reward"]))
    assert (len(train["reward"]), len(held_out["reward"])) == (38, 2)
    assert more["keep_last"]
    np.testing.assert_array_equal(more["model"]["w"], np.zeros((1, 2)))
    np.testing.assert_array_equal(model["w"], np.ones(2))


def test_values_are_learned_in_units_of_a_typical_return():
    table = {"obs": np.zeros((2, 1), np.float32), "reward": np.array([3.0, 4.0], np.float32)}
    model = ValueConfig(width=2, discount=0.9).init(table, KEY)
    np.testing.assert_allclose(model.unit, np.sqrt(12.5) / 0.1, rtol=1e-5)
