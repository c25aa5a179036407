"""What `inspect` says of a data set."""

from dataclasses import replace

import numpy as np
import pytest

from trajstitch.cli.summary import summarise
from worlds import random_dataset


def test_returns_that_differ_by_rounding_only(data):
    same_length = random_dataset(0, (5, 5, 5))
    nearly = replace(same_length, reward=np.full(15, 1 / 3, np.float32))
    assert sum(summarise(nearly)["return_histogram"]["counts"]) == 3


def test_the_numbers(data):
    obs = data.obs.copy()
    obs[:, 2] = 5
    obs[3] = obs[9]
    action = np.clip(3 * data.action, -1, 1)
    changed = replace(data, obs=obs, action=action, info={"env_id": "Hopper-v5", "dropped_steps": 4})
    s = summarise(changed)
    assert (s["episodes"], s["transitions"], s["obs_dim"], s["action_dim"]) == (4, 17, 4, 2)
    assert s["terminals"] + s["timeouts"] == 4
    assert s["constant_columns"] == [2]
    assert s["duplicate_states"] == 1
    assert s["length"]["max"] == 8
    assert s["return"]["mean"] == pytest.approx(data.returns.mean())
    assert sum(s["return_histogram"]["counts"]) == 4
    assert s["dropped_steps"] == 4
    assert s["action_saturation"] == pytest.approx((np.abs(action) == 1).mean(0))
    reference = 100 * (data.returns.mean() + 20.272305) / (3234.3 + 20.272305)
    assert s["normalised_return"]["mean"] == pytest.approx(reference)
    assert summarise(random_dataset(0, (3,)))["normalised_return"] is None
