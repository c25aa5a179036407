"""Divergence: the KL of Gaussians by hand, and of clones to an expert."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.errors import InputError
from trajstitch.evaluation.divergence import distance_to_expert, gaussian_kl
from trajstitch.policies.policy import Policy, stack
from trajstitch.training.networks import MLP, Linear, Range, Scale


def constant(head: str, *output: float, actions: int = 1) -> Policy:
    """A policy whose last layer is this, in every state."""
    last = Linear(jnp.zeros((len(output), 3)), jnp.array(output, jnp.float32))
    return Policy(Scale.unit(3), MLP((last,)), Range(-jnp.ones(actions), jnp.ones(actions)), head)


def test_the_kl_of_two_gaussians_by_hand():
    """ln 2 + (1 + 1) / (2 · 4) − 1/2 for N(0, 1) and N(1, 2²); twice that for two independent dimensions."""
    expected = np.log(2) + 2 / 8 - 0.5
    zero, one = jnp.zeros(1), jnp.ones(1)
    assert gaussian_kl(zero, zero, one, jnp.log(2 * one)) == pytest.approx(expected, rel=1e-6)
    two = [jnp.repeat(part, 2) for part in (zero, zero, one, jnp.log(2 * one))]
    assert gaussian_kl(*two) == pytest.approx(2 * expected, rel=1e-6)
    assert gaussian_kl(one, zero, one, zero) == 0
    assert gaussian_kl(one, jnp.log(2 * one), zero, zero) == pytest.approx(-np.log(2) + 5 / 2 - 0.5, rel=1e-6)


def test_the_kl_is_the_mean_of_the_log_ratio_of_drawn_actions():
    """The paper's own formula, E[log π*(a|s) − log π(a|s)], with actions drawn from the expert."""
    mean, log_std, other, other_log_std = (jnp.array(x) for x in ([0.3, -0.2], [-1.0, -2], [0.1, 0.4], [-0.5, -1]))
    action = mean + jnp.exp(log_std) * jax.random.normal(jax.random.key(0), (400_000, 2))

    def log_density(mean, log_std):
        return jax.scipy.stats.norm.logpdf(action, mean, jnp.exp(log_std)).sum(1)

    drawn = (log_density(mean, log_std) - log_density(other, other_log_std)).mean()
    assert gaussian_kl(mean, log_std, other, other_log_std) == pytest.approx(float(drawn), rel=0.01)


def test_clones_are_compared_with_the_expert_one_by_one():
    """An expert that takes 0.5 with std 0.01; one clone is it, the other takes 0.3 with std 0.02."""
    expert = constant("tanh", np.arctanh(0.5))
    clones = stack([constant("gaussian", 0.5, np.log(0.01)), constant("gaussian", 0.3, np.log(0.02))])
    obs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    found = distance_to_expert(clones, expert, obs)
    expected = np.log(2) + (0.01**2 + 0.2**2) / (2 * 0.02**2) - 0.5
    assert found.kl == pytest.approx([0, expected], rel=1e-4, abs=1e-4)
    assert found.action_error == pytest.approx([0, 0.04], abs=1e-6)
    wider = distance_to_expert(clones, expert, obs, std=0.02)
    assert wider.kl[1] == pytest.approx(0.2**2 / (2 * 0.02**2), rel=1e-4)


def test_a_mean_beyond_the_range_is_farther_than_the_action_it_leads_to():
    """The clone's Gaussian is around 1.5, and it plays 1; the expert plays 0.5."""
    expert, clone = constant("tanh", np.arctanh(0.5)), constant("gaussian", 1.5, np.log(0.01))
    found = distance_to_expert(clone, expert, np.zeros((2, 3), np.float32))
    assert found.kl == pytest.approx([1 / (2 * 0.01**2)], rel=1e-4)
    assert found.action_error == pytest.approx([0.25], rel=1e-5)


def test_a_clone_without_a_density_is_refused():
    policy = constant("tanh", 0.5)
    with pytest.raises(InputError, match="needs clones with a gaussian head, not tanh"):
        distance_to_expert(policy, policy, np.zeros((2, 3), np.float32))
