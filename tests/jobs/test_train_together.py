"""Several data sets in one training run: each run ends as if it had been trained alone."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from trajstitch.data import normalised_weight
from trajstitch.errors import InputError
from trajstitch.jobs import train as training
from trajstitch.jobs import weigh as weighing
from trajstitch.jobs.run_dir import Run
from trajstitch.jobs.train import train_run, train_together
from trajstitch.jobs.weigh import weigh_run, weigh_together
from trajstitch.methods import METHODS, defaults
from trajstitch.methods.bc import BC
from trajstitch.methods.weigh import Weigh
from trajstitch.policies.policy_files import load_policy
from trajstitch.training.loop import Fit
from worlds import random_dataset

SMALL = {"steps": 12, "batch": 8, "width": 8}
REBRAC = [{**SMALL, "depth": 1, "actor_penalty": size, "critic_penalty": size / 2} for size in (0.01, 2.0)]
EVERY = 4


def small(seed):
    return random_dataset(seed=seed, lengths=(5, 9, 8, 3 + seed), obs_dim=4, action_dim=2)


SETS = [small(0), small(1)]


def together(folder, method, settings, sets=SETS, **options):
    outs = [folder / f"{i}" for i in range(len(sets))]
    train_together(method, sets, outs, settings, seeds=2, every=EVERY, **options)
    return outs


@pytest.mark.parametrize(("method", "settings"), [("bc", [SMALL, SMALL]), ("rebrac", REBRAC)])
def test_runs_are_those_of_training_alone(method, settings, tmp_path, monkeypatch):
    outs = together(tmp_path / "together", method, settings)
    for data, out, own in zip(SETS, outs, settings, strict=True):
        alone, _ = train_run(method, data, tmp_path / "alone" / out.name, seeds=2, every=EVERY, **own)
        assert json.loads((out / "config.json").read_text()) == json.loads(
            (alone.path / "config.json").read_text()
        )
        for name in ("policy.npz", "checkpoints/000000004.npz"):
            ours, theirs = (jax.tree.leaves(load_policy(place / name)) for place in (out, alone.path))
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)
        ours, theirs = (Run.existing(place).metrics() for place in (out, alone.path))
        assert [entry["step"] for entry in ours] == [4, 8, 12]
        for one, other in zip(ours, theirs, strict=True):
            assert one.keys() == other.keys()
            np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-3)
    monkeypatch.setattr(training, "_train", lambda *_: pytest.fail("trained again"))
    train_run(method, SETS[1], outs[1], seeds=2, every=EVERY, **settings[1])


def test_data_without_weights_are_trained_as_alone_beside_data_with_weights(tmp_path):
    weighed = dataclasses.replace(SETS[1], weight=normalised_weight(np.arange(SETS[1].transitions) ** 2))
    outs = together(tmp_path / "together", "bc", [SMALL, SMALL], [SETS[0], weighed], seed=3)
    for data, out in zip((SETS[0], weighed), outs, strict=True):
        alone, _ = train_run("bc", data, tmp_path / "alone" / out.name, seed=3, seeds=2, every=EVERY, **SMALL)
        ours, theirs = (jax.tree.leaves(load_policy(place / "policy.npz")) for place in (out, alone.path))
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_what_was_killed_goes_on_where_each_run_was(tmp_path, monkeypatch):
    whole = together(tmp_path / "whole", "bc", [SMALL, SMALL])
    with monkeypatch.context() as patch:
        patch.setattr(training, "_checkpoint", _stopped_after(training._checkpoint, 3))
        with pytest.raises(KeyboardInterrupt):
            together(tmp_path / "killed", "bc", [SMALL, SMALL])
    reached = [Run.existing(tmp_path / "killed" / name).steps() for name in "01"]
    assert reached == [[4, 8], [4]]  # the first is one checkpoint ahead
    told = []
    killed = together(tmp_path / "killed", "bc", [SMALL, SMALL], tell=lambda *words: told.append(words[:2]))
    assert told == [(8, 12), (12, 12), (12, 12)]
    for one, other in zip(killed, whole, strict=True):
        assert Run.existing(one).metrics()[-1]["step"] == 12
        for ours, theirs in zip(
            *(jax.tree.leaves(load_policy(p / "policy.npz")) for p in (one, other)), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
        assert not (one / "state.npz").exists()


def test_what_cannot_be_trained_in_one_program_is_refused(tmp_path):
    joined = {name for name in METHODS if defaults(name).joins}
    assert joined == {"bc", "percent-bc", "gaussian-bc", "iql", "td3bc", "rebrac", "cql", "mbop"}
    with pytest.raises(
        InputError, match="MOReL cannot learn from several data sets at once; train on each by a call"
    ):
        together(tmp_path, "morel", [{}, {}])
    with pytest.raises(InputError, match="data sets that are trained on together need the same settings"):
        together(tmp_path, "bc", [SMALL, {**SMALL, "width": 16}])
    other = random_dataset(seed=0, lengths=(5, 9), obs_dim=3, action_dim=2)
    with pytest.raises(InputError, match="a data set has 3 observations and 2 actions, but the first has 4 and 2"):
        together(tmp_path, "bc", [SMALL, SMALL], [SETS[0], other])
    with pytest.raises(InputError, match="seeds must be at least 1, not 0"):
        train_together("bc", SETS, [tmp_path / "0", tmp_path / "1"], [SMALL, SMALL], seeds=0)
    with pytest.raises(InputError, match="a checkpoint every 0 steps is not possible"):
        train_together("bc", SETS, [tmp_path / "0", tmp_path / "1"], [SMALL, SMALL], every=0)
    assert not list(tmp_path.iterdir())


def test_critics_are_those_of_weighing_alone(tmp_path, monkeypatch):
    config = Weigh(members=2, width=8, fit=Fit(steps=41, batch=8))
    outs = [tmp_path / "together" / f"{i}" for i in range(2)]
    alone = [weigh_run(data, config, tmp_path / f"alone{i}", seed=3) for i, data in enumerate(SETS)]
    with monkeypatch.context() as patch:
        patch.setattr(weighing, "_keep", _stopped_after(weighing._keep, 3))
        with pytest.raises(KeyboardInterrupt):
            weigh_together(SETS, config, outs, seed=3)
    assert [len(Run.existing(out).metrics()) for out in outs] == [2, 1]  # the first is one check ahead
    told = []
    weigh_together(SETS, config, outs, seed=3, tell=lambda *words: told.append(words[:2]))
    assert told[0] == (6, 41)
    assert told[-1] == (41, 41)
    monkeypatch.setattr(weighing, "_train_and_appraise", lambda *_: pytest.fail("trained again"))
    weigh_together(SETS, config, outs, seed=3, tell=lambda *_: pytest.fail("trained again"))
    for data, out, (run, weighed, appraisal) in zip(SETS, outs, alone, strict=True):
        ours, again, theirs = weigh_run(data, config, out, seed=3)
        assert ours.settings() == run.settings()
        assert not (out / "state.npz").exists()
        np.testing.assert_allclose(theirs.advantage, appraisal.advantage, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(again.weight, weighed.weight, rtol=1e-2)
    nothing = dataclasses.replace(SETS[1], reward=np.zeros_like(SETS[1].reward))
    with pytest.raises(InputError, match="all rewards are 0"):
        weigh_together([SETS[0], nothing], config, [tmp_path / "a", tmp_path / "b"])
    assert not (tmp_path / "a").exists()


def _stopped_after(write, count):
    written = []

    def wrapped(*arguments):
        if len(written) == count:
            raise KeyboardInterrupt
        written.append(arguments)
        write(*arguments)

    return wrapped


def test_a_method_that_makes_rows_of_its_own_does_not_join():
    class Refreshed(BC):
        def refresh(self, model, opt_state, table, key):
            return opt_state

    assert not Refreshed().joins
