"""The training loop: known answers, chunks that do not matter, divergence."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.errors import InputError
from trajstitch.training import loop
from trajstitch.training.loop import Fit, Learner

TABLE = {"x": np.linspace(-1, 1, 64, dtype=np.float32)[:, None]}
TABLE["y"] = 3 * TABLE["x"] - 0.5


@dataclass(frozen=True)
class Line(Learner):
    fit: Fit = Fit()

    def init(self, table, key):
        return {"w": jax.random.normal(key, (1,)), "b": jnp.zeros(1)}

    def loss(self, model, row, key):
        return jnp.sum((model["w"] * row["x"] + model["b"] - row["y"]) ** 2)


def train(config, every, seeds=(0, 1), state=None):
    learner = Line(config)
    return list(loop.run(learner, state or loop.start(learner, TABLE, seeds), TABLE, seeds, every))[-1]


def test_learns_a_line():
    state, mean = train(Fit(steps=600, batch=32, rate=0.05), 200)
    np.testing.assert_allclose(state.model["w"][:, 0], 3, atol=1e-3)
    np.testing.assert_allclose(state.model["b"][:, 0], -0.5, atol=1e-3)
    assert (mean["loss"] < 1e-3).all()


def test_chunks_do_not_matter():
    config = Fit(steps=50, batch=8)
    whole, _ = train(config, 50)
    parts, _ = train(config, 7)
    np.testing.assert_array_equal(whole.model["w"], parts.model["w"])


def test_going_on_from_a_state_ends_the_same():
    config = Fit(steps=50, batch=8)
    whole, _ = train(config, 10)
    half, _ = train(Fit(steps=20, batch=8), 10)
    rest, _ = train(config, 10, state=half)
    np.testing.assert_array_equal(whole.model["w"], rest.model["w"])
    np.testing.assert_array_equal(whole.opt_state[0].nu["w"], rest.opt_state[0].nu["w"])


def test_a_seed_is_the_same_alone_and_in_company():
    config = Fit(steps=50, batch=8)
    company, _ = train(config, 50, seeds=(5, 6, 7))
    alone, _ = train(config, 50, seeds=(6,))
    np.testing.assert_allclose(company.model["w"][1], alone.model["w"][0], rtol=1e-5)
    assert abs(float(company.model["w"][0, 0] - company.model["w"][1, 0])) > 1e-3


@pytest.mark.parametrize("weighted", [False, True])
def test_members_may_learn_from_different_rows(weighted):
    """Each ends as if it had a table of its own."""
    tables = [TABLE, {"x": TABLE["x"][:20], "y": 7 - TABLE["x"][:20]}]
    if weighted:
        tables = [{**table, loop.WEIGHT: np.arange(len(table["x"])) ** 2.0} for table in tables]
    both = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    learner = Line(Fit(steps=50, batch=8))
    state = loop.start(learner, both, (0, 1))
    together, _ = next(loop.run(learner, state, both, (0, 1), 50, rows=(range(64), range(64, 84))))
    for p, table in enumerate(tables):
        alone, _ = next(loop.run(learner, loop.start(learner, table, (p,)), table, (p,), 50))
        np.testing.assert_array_equal(together.model["w"][p], alone.model["w"][0])


@dataclass(frozen=True)
class Mean(Line):
    """Learns the mean of the rows it is shown."""

    def loss(self, model, row, key):
        return jnp.sum((model["b"] - row["y"]) ** 2)


def learned_mean(table, **more):
    learner = Mean(Fit(steps=400, batch=64, rate=0.02))
    steps = loop.run(learner, loop.start(learner, table, (0, 1)), table, (0, 1), 400, **more)
    return np.asarray(list(steps)[-1][0].model["b"])[:, 0]


def test_rows_are_drawn_by_their_weight():
    """The mean that is learned is the weighted one, in any unit; a row of weight 0 is never drawn."""
    value = np.array([1e9, 1.0, 2.0, 1e9, 5.0, 1e9], np.float32)
    weight = np.array([0, 1, 2, 0, 1, 0], np.float32)
    for unit in (1e-3, 1e3):
        table = {"y": value[:, None], loop.WEIGHT: unit * weight}
        np.testing.assert_allclose(learned_mean(table), 2.5, atol=0.25)


def test_weights_that_draw_nothing_are_refused():
    for wrong in ([0.0, 0.0], [1.0, -1.0], [1.0, np.nan]):
        with pytest.raises(InputError, match="weights must be finite and not negative"):
            learned_mean({"y": np.ones((2, 1), np.float32), loop.WEIGHT: np.array(wrong)})


@dataclass(frozen=True)
class Shown(Mean):
    """Says which rows it is shown."""

    def loss(self, model, row, key):
        return super().loss(model, row, key), {"shown": row["y"][0]}


@pytest.mark.parametrize("weighted", [False, True])
def test_every_step_draws_rows_of_its_own(weighted):
    table = {"y": np.arange(64.0, dtype=np.float32)[:, None]}
    if weighted:
        table[loop.WEIGHT] = np.arange(64.0)
    learner = Shown(Fit(steps=20, batch=1))
    shown = [mean["shown"][0] for _, mean in loop.run(learner, loop.start(learner, table, (0,)), table, (0,), 1)]
    assert len(set(shown)) > 10


def test_what_each_row_hands_to_another():
    """Of the mean weight 4, the rows 0, 2 and 4 lack 3, 4 and 1, and the rows 1 and 3 have 6 and 2 beyond it."""
    keep, alias = loop._alias(np.array([1.0, 10.0, 0.0, 6.0, 3.0]))
    # The lack of row 2 reaches 1 beyond the excess of row 1.
    np.testing.assert_allclose(keep, [1 / 4, 1 - 1 / 4, 0, 1, 3 / 4])
    np.testing.assert_array_equal(alias, [1, 3, 1, 3, 3])


def test_rows_get_their_share_of_draws_exactly():
    rng = np.random.default_rng(0)
    for trial in range(300):
        count = 1 + trial % 12
        weight = rng.choice([0, 0.1, 1, 2, 7, 1e-9, 1e6], count) if trial % 2 else rng.random(count) ** 5
        weight[rng.integers(count)] += 1
        keep, alias = loop._alias(weight)
        share = keep / count
        np.add.at(share, alias, (1 - keep) / count)
        np.testing.assert_allclose(share, weight / weight.sum(), rtol=1e-9, atol=1e-12)
        assert (share[weight == 0] == 0).all()


def test_rows_that_weigh_alike_are_drawn_as_without_weights():
    """So data without weights may share a program with data that have some. The mean of three 0.1 is above 0.1."""
    for count in (3, 64):
        keep, alias = loop._alias(np.full(count, 0.1))
        assert (keep == 1).all()
        np.testing.assert_array_equal(alias, np.arange(count))
    table = {"y": np.arange(64.0, dtype=np.float32)[:, None]}
    learner, shown = Shown(Fit(steps=8, batch=1)), []
    for weight in ({}, {loop.WEIGHT: np.full(64, 0.1)}):
        state = loop.start(learner, table, (0,))
        shown.append([mean["shown"][0] for _, mean in loop.run(learner, state, {**table, **weight}, (0,), 1)])
    assert shown[0] == shown[1]


def test_members_that_share_some_of_their_weighted_rows_are_refused():
    table = {"y": np.ones((8, 1), np.float32), loop.WEIGHT: np.arange(8.0)}
    with pytest.raises(InputError, match="members share some of their rows, not all"):
        learned_mean(table, rows=[range(8), range(4)])


def test_what_is_yielded():
    learner = Line(Fit(steps=25, batch=4))
    steps = [int(s.step) for s, _ in loop.run(learner, loop.start(learner, TABLE, (0,)), TABLE, (0,), 10)]
    assert steps == [10, 20, 25]


@dataclass(frozen=True)
class Odd(Line):
    """Counts its steps, and says so at odd ones only."""

    phases = 2

    def begin(self, model):
        return {"adam": super().begin(model), "count": jnp.zeros(())}

    def step(self, model, opt_state, batch, key, phase):
        count = opt_state["count"]
        model, adam, metrics = super().step(model, opt_state["adam"], batch, key, phase)
        return model, {"adam": adam, "count": count + 1}, metrics | ({"count": count} if phase == 1 else {})


def test_a_number_is_the_mean_over_the_steps_that_have_it():
    """Also where a chunk begins or ends between phases."""
    learner = Odd(Fit(steps=8, batch=4))
    run = loop.run(learner, loop.start(learner, TABLE, (0, 1)), TABLE, (0, 1), 3)
    (_, first), (_, second), (_, third) = run
    np.testing.assert_array_equal(first["count"], [1, 1])  # of steps 0, 1, 2
    np.testing.assert_array_equal(second["count"], [4, 4])  # 3, 4, 5
    np.testing.assert_array_equal(third["count"], [7, 7])  # 6, 7
    assert first["loss"].shape == (2,)
    single = loop.run(learner, loop.start(learner, TABLE, (0, 1)), TABLE, (0, 1), 1)
    assert [np.isfinite(metrics["count"]).all() for _, metrics in single] == [False, True] * 4


@dataclass(frozen=True)
class Seldom(Line):
    """Draws a number before every fifth step and logs it at each."""

    refresh_interval = 5

    def begin(self, model):
        return {"adam": super().begin(model), "drawn": jnp.zeros(())}

    def refresh(self, model, opt_state, table, key):
        return {**opt_state, "drawn": table["x"].shape[0] + jax.random.uniform(key)}

    def step(self, model, opt_state, batch, key, phase):
        model, adam, metrics = super().step(model, opt_state["adam"], batch, key, phase)
        return model, {**opt_state, "adam": adam}, {**metrics, "drawn": opt_state["drawn"]}


def test_what_is_made_anew_once_in_many_steps():
    """Before the first step and every fifth, of the whole table, by the seed alone, however the run is cut."""
    learner, seeds = Seldom(Fit(steps=12, batch=4)), (0, 1)
    single = [m["drawn"] for _, m in loop.run(learner, loop.start(learner, TABLE, seeds), TABLE, seeds, 1)]
    assert [i for i in range(1, 12) if (single[i] != single[i - 1]).any()] == [5, 10]
    assert len(set(np.ravel(single))) == 6  # three draws of two seeds
    assert np.floor(np.ravel(single)) == pytest.approx(64)
    for every in (3, 7, 12):
        chunks = list(loop.run(learner, loop.start(learner, TABLE, seeds), TABLE, seeds, every))
        expected = [np.mean(single[i : i + every], 0) for i in range(0, 12, every)]
        np.testing.assert_allclose([mean["drawn"] for _, mean in chunks], expected, rtol=1e-6)


def test_training_stops_at_until_and_goes_on_after_it():
    learner = Line(Fit(steps=50, batch=8))
    state = loop.start(learner, TABLE, (0, 1))
    *_, (state, _) = loop.run(learner, state, TABLE, (0, 1), 10, 15)
    assert int(state.step) == 15
    assert list(loop.run(learner, state, TABLE, (0, 1), 10, 15)) == []
    rest, _ = train(learner.fit, 10, state=state)
    whole, _ = train(learner.fit, 10)
    np.testing.assert_array_equal(whole.model["w"], rest.model["w"])


def test_the_best_held_out_weights_are_kept_and_waiting_ends():
    """Held-out rows of another line: the loss there falls, then rises as training goes on."""
    other = {"x": TABLE["x"], "y": 1.5 * TABLE["x"] - 0.25}
    learner = Line(Fit(steps=2000, batch=32, rate=0.02))
    best, history = loop.train_best(learner, TABLE, other, (0, 1, 2), patience=3)
    held = np.array(history.held_out)
    assert len(history.step) < 20  # stopped early
    kept = np.array([loop.mean_loss(learner.loss, {k: v[p] for k, v in best.items()}, other, jax.random.key(0))
                     for p in range(3)])  # fmt: skip
    np.testing.assert_allclose(kept, held.min(0), rtol=1e-5)
    last, _ = loop.train_best(learner, TABLE, other, (0, 1, 2), keep_last=True, patience=3)
    assert not np.allclose(last["w"], best["w"])


@dataclass(frozen=True)
class Scripted(Learner):
    """Learns nothing: the held-out loss of seed p after step t is script[p][t - 1]."""

    script: tuple[tuple[float, ...], ...] = ()
    fit: Fit = Fit(steps=20, batch=1)

    def init(self, table, key):
        return {"who": jax.random.key_data(key)[-1].astype(jnp.int32), "steps": jnp.zeros((), jnp.int32)}

    def begin(self, model):
        return jnp.zeros(())

    def step(self, model, opt_state, batch, key, phase):
        return {**model, "steps": model["steps"] + 1}, opt_state, {"loss": jnp.zeros(())}

    def loss(self, model, row, key):
        return jnp.array(self.script)[model["who"], model["steps"] - 1]


def checked(*script, steps=20, **more):
    """The steps whose weights are kept and those at which the held-out loss was checked."""
    padded = tuple(tuple(one) + (one[-1],) * (steps - len(one)) for one in script)
    learner = Scripted(padded, Fit(steps=steps, batch=1))
    model, history = loop.train_best(learner, TABLE, TABLE, range(len(script)), **more)
    return model["steps"].tolist(), history.step


def test_patience_ends_after_so_many_checks_without_a_lower_loss():
    assert checked([5, 4, 3, 4], patience=2) == ([3], [1, 2, 3, 4, 5])
    assert checked([5, 4, 3, 4], patience=3) == ([3], [1, 2, 3, 4, 5, 6])
    assert checked([5, 4, 3, 4], patience=2, keep_last=True) == ([5], [1, 2, 3, 4, 5])
    # Every lower loss begins the waiting anew, but only one lower than all before.
    assert checked([5, 6, 4, 5, 3, 4], patience=2) == ([5], [*range(1, 8)])
    assert checked([5, 3, 4, 3.5], patience=2) == ([2], [1, 2, 3, 4])
    # One member that still learns is enough, and each keeps its own best.
    assert checked([*range(20, 0, -1)], [1, 2], patience=2) == ([20, 1], [*range(1, 21)])
    assert checked([5, 4, 3, 4]) == ([3], [*range(1, 21)])


def test_the_held_out_loss_is_checked_at_most_twenty_times():
    assert checked([1], steps=30)[1] == [*range(2, 31, 2)]
    assert checked([1], steps=7)[1] == [*range(1, 8)]


def test_every_row_is_drawn_and_no_other():
    """Rows are told apart by powers of two: a batch of many has each about as often."""
    table = {"x": 2.0 ** np.arange(4)[:, None], "y": np.zeros((4, 1))}

    class Drawn(Line):
        def loss(self, model, row, key):
            found = {f"row {i}": jnp.mean(row["x"] == 2.0**i) for i in range(4)}
            return jnp.zeros(()), found

    learner = Drawn(Fit(steps=4, batch=256))
    for rows, expected in ((None, [0.25] * 4), ([range(1, 3)], [0, 0.5, 0.5, 0]), ([range(3, 4)], [0, 0, 0, 1])):
        _, mean = next(loop.run(learner, loop.start(learner, table, (0,)), table, (0,), 4, rows=rows))
        np.testing.assert_allclose([mean[f"row {i}"][0] for i in range(4)], expected, atol=0.06)


def test_every_row_of_a_batch_has_a_key_of_its_own():
    def loss(model, row, key):
        drawn = jax.random.uniform(key)
        return drawn, {"square": drawn**2}

    mean, metrics = loop.mean_loss(loss, None, TABLE, jax.random.key(0))
    assert float(mean) == pytest.approx(1 / 2, abs=0.1)
    assert float(metrics["square"] - mean**2) == pytest.approx(1 / 12, abs=0.03)


class Lost(Scripted):
    """The second member's loss is nan."""

    def step(self, model, opt_state, batch, key, phase):
        return model, opt_state, {"loss": jnp.where(model["who"] == 1, jnp.nan, 0.0)}


def test_divergence_of_one_member_is_said():
    learner = Lost()
    with pytest.raises(InputError, match="diverged"):
        next(loop.run(learner, loop.start(learner, TABLE, (0, 1)), TABLE, (0, 1), 2))


def test_divergence_is_said():
    with pytest.raises(InputError, match="diverged.*lower the rate"):
        train(Fit(steps=200, batch=4, rate=1e30), 100)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"batch": 0}, {"rate": 0.0}, {"rate": float("nan")}])
def test_impossible_settings(bad):
    with pytest.raises(InputError, match=f"{next(iter(bad))} must"):
        Fit(**bad)
