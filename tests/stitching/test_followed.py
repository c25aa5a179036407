"""The planner policy: a given policy is followed in a world model, and stops where the model does not know."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.data import Trajectory, from_trajectories
from trajstitch.errors import InputError
from trajstitch.formats import load
from trajstitch.jobs.improve import improve_run
from trajstitch.policies.policy import Policy, acting, stack
from trajstitch.policies.policy_files import policies_for, save_policy
from trajstitch.stitching.followed import FollowConfig, follow_policy
from trajstitch.stitching.improve import Improve, Models, improve
from trajstitch.stitching.reach import ReachConfig, ReachFinder
from trajstitch.training.networks import Range, Scale
from worlds import random_dataset


class Line:
    """A place on a line that the action moves; two members, which disagree beyond 3 by the distance from it."""

    def steps(self, obs, action):
        obs, action = np.asarray(obs), np.asarray(action)
        after = obs + action
        off = np.maximum(np.abs(after) - 3, 0)
        return np.stack([after + off, after - off]), np.stack([after[:, 0], after[:, 0]])


@pytest.fixture(scope="module")
def walks():
    """Random walks between -3 and 3, so that all recorded steps are known."""
    rng, made = np.random.default_rng(0), []
    for _ in range(30):
        obs, action = [rng.uniform(-3, 3, 1)], []
        for _ in range(20):
            action.append(np.clip(obs[-1] + rng.uniform(-0.5, 0.5, 1), -3, 3) - obs[-1])
            obs.append(obs[-1] + action[-1])
        made.append(Trajectory(np.array(obs), np.array(action), np.array(obs)[1:, 0], terminal=False))
    return from_trajectories(made)


def tiny_policy(seed):
    return Policy.init(Scale.unit(1), Range(-jnp.ones(1), jnp.ones(1)), jax.random.key(seed), width=4, depth=1)


def right(obs):
    return np.full((len(obs), 1), 0.25, np.float32)


def test_rollouts_follow_the_policy_and_stop_where_the_members_disagree(walks):
    config = FollowConfig(walks=40, length=50)
    found = follow_policy(ReachFinder(walks, Line(), ReachConfig()), right, config, seed=0)
    starts = walks.row[walks.start[:-1]]
    assert np.isin(found.first[:15], starts).all()
    assert not np.isin(found.first, starts).all()
    for k, steps in enumerate(found.length):
        begin = walks.obs[found.first[k], 0]
        # It goes to the last place within 3, and not one step on.
        assert steps == int((3 - begin) / 0.25 + 1e-4)
        np.testing.assert_allclose(found.obs[k, : steps + 1, 0], begin + 0.25 * np.arange(steps + 1), atol=1e-4)
        np.testing.assert_allclose(found.reward[k, :steps], found.obs[k, 1 : steps + 1, 0], atol=1e-4)
        assert found.error[k, :steps].max(initial=0) < 1e-4
        assert found.error[k, steps] > 1e-4
    assert not found.terminal.any()


def test_the_data_say_that_they_are_imagined(walks):
    config = Improve(planner="policy", follow=FollowConfig(walks=10, length=6))
    made = improve(walks, config, models=Models(world=Line(), policy=right)).dataset
    assert made.info["imagined"]
    assert made.seams is not None
    assert (made.seams.target == -1).all()
    assert made.length.max() == 6
    np.testing.assert_allclose(made.action, 0.25)


def test_a_policy_is_needed_and_must_fit(walks):
    config = Improve(planner="policy")
    with pytest.raises(InputError, match="needs a policy"):
        improve(walks, config, models=Models(world=Line()))
    with pytest.raises(InputError, match="others take none"):
        improve(walks, Improve(planner="optimal"), models=Models(world=Line(), policy=right))
    with pytest.raises(InputError, match=r"shape \(500, 2\)"):
        improve(walks, config, models=Models(world=Line(), policy=lambda obs: np.zeros((len(obs), 2))))
    with pytest.raises(InputError, match="known must be above 0"):
        FollowConfig(known=0)


def test_another_policy_is_another_run(walks, tmp_path):
    one, two = tiny_policy(0), tiny_policy(1)
    config = Improve(planner="policy", follow=FollowConfig(walks=4, length=3))
    models = Models(world=Line())
    run, first = improve_run(walks, config, tmp_path / "run", models=models, policy=one, ending=".npz")
    page = (run.path / "report.html").read_text()
    assert "were imagined" in page
    _, again = improve_run(walks, config, tmp_path / "run", models=models, policy=one, ending=".npz")
    assert again.dataset.fingerprint == first.dataset.fingerprint
    with pytest.raises(InputError, match="other settings"):
        improve_run(walks, config, tmp_path / "run", models=models, policy=two, ending=".npz")


def test_the_plan_is_the_policy_in_every_recorded_state(walks, tmp_path):
    """Single steps, which land where the model says, even where rollouts would stop; their seams say so."""
    config = Improve(planner="policy", follow=FollowConfig(walks=4, length=3))
    result = improve(walks, config, models=Models(world=Line(), policy=right))
    plan = result.plan
    assert len(plan) == plan.transitions == walks.transitions
    first = walks.obs[walks.row]
    np.testing.assert_array_equal(plan.obs[plan.row], first)
    np.testing.assert_array_equal(plan.action, right(first))
    np.testing.assert_allclose(plan.obs[plan.row + 1], np.clip(first + 0.25, None, walks.obs.max()), atol=1e-5)
    np.testing.assert_allclose(plan.reward, (first + 0.25)[:, 0], atol=1e-5)
    np.testing.assert_array_equal(plan.seams.source, walks.row)
    assert (plan.seams.target == -1).all()
    assert not plan.terminal.any()
    assert (plan.seams.landing_error[first[:, 0] > 2.9] > 0).all()
    run, _ = improve_run(
        walks, config, tmp_path, models=Models(world=Line()), policy=tiny_policy(0), ending=".npz"
    )
    saved = load(run.path / "plan.npz")
    np.testing.assert_array_equal(saved.obs[saved.row], first)


def test_several_policies_act_as_their_median(walks, tmp_path):
    """Of three, one far from the others has no say; in each dimension of its own."""
    policies = [tiny_policy(seed) for seed in range(3)]
    obs = walks.obs[:5]
    each = np.stack([acting(policy)(obs) for policy in policies])
    np.testing.assert_allclose(acting(stack(policies))(obs), np.median(each, 0), atol=1e-6)
    assert np.abs(each[0] - np.median(each, 0)).max() > 1e-3
    config = Improve(planner="policy", follow=FollowConfig(walks=4, length=3))
    _, result = improve_run(
        walks, config, tmp_path, models=Models(world=Line()), policy=stack(policies), ending=".npz"
    )
    followed = result.dataset
    middle = np.asarray(acting(stack(policies))(followed.obs[followed.row]))
    middle = np.clip(middle, walks.action.min(0), walks.action.max(0))
    np.testing.assert_allclose(followed.action, middle, atol=1e-5)


def test_one_policy_of_a_file(walks, tmp_path):
    one, two = tiny_policy(0), tiny_policy(1)
    save_policy(stack([one, two]), tmp_path / "two.npz", {})
    found = policies_for(walks, tmp_path / "two.npz", 1)
    np.testing.assert_array_equal(found.net.layers[0].weight, two.net.layers[0].weight)
    with pytest.raises(InputError, match="holds 2 policies, so there is no number 2"):
        policies_for(walks, tmp_path / "two.npz", 2)
    assert policies_for(walks, tmp_path / "two.npz").count == 2
    other = random_dataset(seed=0, lengths=(3, 4), obs_dim=walks.obs_dim + 1, action_dim=walks.action_dim)
    with pytest.raises(InputError, match=r"two\.npz takes .* but the data have .*; give a policy of the same env"):
        policies_for(other, tmp_path / "two.npz")
