import dataclasses
import html
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trajstitch import report
from trajstitch.cli.improve import verdict
from trajstitch.data import Dataset, Seams
from trajstitch.errors import InputError
from trajstitch.evaluation.scores import Scores
from trajstitch.stitching.improve import Improve, Result
from trajstitch.training.loop import History
from worlds import random_dataset

STEPS, CUT = 12, 4  # all trajectories have this length; stitched ones go on along another from this step


def climbing(many: int, seed: int = 0, obs_dim: int = 3, **info: Any) -> Dataset:
    """Trajectory m earns about m at every step."""
    data = random_dataset(seed, [STEPS] * many, obs_dim)
    reward = np.repeat(np.arange(many), STEPS) / many + np.abs(data.reward) / 1000
    return dataclasses.replace(data, reward=reward.astype(np.float32), info=info)


def stitched(data: Dataset, replaced: int, margin: float = 1.0, seed: int = 0) -> Dataset:
    """The first trajectories step over to later, better ones."""
    many, rng = len(data), np.random.default_rng(seed)
    along = np.arange(many)
    along[:replaced] += many - replaced
    tail = np.arange(STEPS) >= CUT
    base = np.where(tail, along[:, None], np.arange(many)[:, None]) * (STEPS + 1)
    source = base + np.arange(STEPS)
    target = source + 1
    target[:, CUT - 1] = source[:, CUT]
    seam = np.zeros((many, STEPS), bool)
    seam[:replaced, CUT - 1] = True
    step = (source - base // (STEPS + 1)).ravel()
    row = np.concatenate([source, target[:, -1:]], axis=1).ravel()

    def of_seams(values: Any) -> Any:
        return np.where(seam.ravel(), values, 0).astype(np.float32)

    count = data.transitions
    seams = Seams(
        source=source.ravel(),
        target=target.ravel(),
        stitched=seam.ravel(),
        margin=of_seams(margin * rng.lognormal(size=count)),
        spread=of_seams(rng.random(count)),
        value_gain=of_seams(rng.random(count)),
        return_before=data.returns,
    )
    return dataclasses.replace(
        data, obs=data.obs[row], action=data.action[step], reward=data.reward[step], seams=seams
    )


def result_of(improved: Dataset, iterations: int = 3) -> Result:
    losses = [[3.0 - 0.1 * c, 2.9 - 0.1 * c] for c in range(20)]
    past = History(list(range(5, 105, 5)), losses, losses)
    entry = {"accepted": 5, "return_mean": 4.5, "return_std": 1.0, "steps": 60, "stitched_steps": 6, "seams": 6}
    entry |= {"repeated_states": 0, "at_max_length": 38, "seconds": 22.7}
    return Result(
        improved,
        [{"iteration": k + 1, **entry} for k in range(iterations)],
        {"dynamics": past, "value 1": past},
        {"inverse_mean_absolute_action": 0.058, "reward_root_mean_square_of_std": 0.047},
        {"epsilon": 0.269, "candidates": 360906, "edges": 106, "share_of_states_with_an_edge": 0.001},
    )


def scores_of(mean: float, reference: tuple[float, float] | None = (-20.0, 3000.0), seeds: int = 3) -> Scores:
    returns = mean + np.random.default_rng(0).normal(size=(seeds, 5))
    return Scores("Hopper-v5", "gymnasium", returns, np.ones((seeds, 5), np.int64), reference)


SETTINGS = {"config": dataclasses.asdict(Improve()), "seed": 7}


def page_of(original: Dataset, improved: Dataset, **more: Any) -> str:
    return report.render(original, improved, result_of(improved), SETTINGS, **more)


def words(page: str) -> str:
    """What a reader sees, without the pictures."""
    text = re.sub(r"<svg.*?</svg>|<style.*?</style>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", text)).replace("\u00a0", " ").split())


@pytest.fixture(scope="module")
def original() -> Dataset:
    return climbing(40, env_id="Hopper-v5")


@pytest.fixture(scope="module")
def improved(original: Dataset) -> Dataset:
    return stitched(original, 15)


@pytest.fixture(scope="module")
def page(original: Dataset, improved: Dataset) -> str:
    both = {"bc on original": scores_of(1000), "bc on improved": scores_of(2000)}
    return page_of(original, improved, scores=both)


def test_headline_says_what_happened(page: str, original: Dataset, improved: Dataset) -> None:
    old = np.mean([t.reward.sum(dtype=float) for t in original])
    new = np.mean([t.reward.sum(dtype=float) for t in improved])
    normal = [100 * (x + 20.272305) / (3234.3 + 20.272305) for x in (old, new)]
    said = (
        f"15 of 40 trajectories were replaced; mean return {old:.1f} → {new:.1f} (+{100 * (new / old - 1):.0f}%), "
        f"normalised {normal[0]:.1f} → {normal[1]:.1f}. {100 * 15 / 480:.1f}% of steps are stitched, each more "
        "plausible than the step it replaced."
    )
    assert said in words(page)


def test_page_is_one_file(page: str) -> None:
    links = re.findall(r'(?:src|href)\s*=\s*["\']?([^"\'\s>]*)', page)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert not re.search(r"<script|<link|<iframe|@import|url\((?!#)|https?:", page)
    assert page.count("<figure>") == page.count("</figure>") == 2 + 2 + 6 + 1 + 6 + 2
    assert page.count("<svg") == page.count("</svg>") == page.count("<figure>") + 2  # the scores have bars


def test_every_part_is_there(page: str) -> None:
    text = words(page)
    for part in ("Can it be trusted?", "Returns", "Iterations", "Seams", "Where in the state space", "Models"):
        assert part in text
    assert "360,906" in text
    assert "config.dynamics.members" in text
    assert "matplotlib" in text
    low, high = scores_of(2000).summary()["raw"]["interval95"]
    assert f"{low:,.1f} to {high:,.1f}" in text


def test_same_input_same_bytes_and_nothing_else_changes(page: str, original: Dataset, improved: Dataset) -> None:
    import matplotlib

    both = {"bc on original": scores_of(1000), "bc on improved": scores_of(2000)}
    with matplotlib.rc_context({"lines.linewidth": 9, "figure.facecolor": "black", "font.size": 3}):
        before = dict(matplotlib.rcParams)
        again = page_of(original, improved, scores=both)
        assert dict(matplotlib.rcParams) == before
    assert again == page


def test_another_process_makes_the_same_page_without_pyplot(page: str) -> None:
    code = f"""
import sys
sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]!r}
import trajstitch.report
assert "matplotlib" not in sys.modules
import test_report as t
data = t.climbing(40, env_id="Hopper-v5")
both = {{"bc on original": t.scores_of(1000), "bc on improved": t.scores_of(2000)}}
page = t.page_of(data, t.stitched(data, 15), scores=both)
assert "matplotlib.pyplot" not in sys.modules
sys.stdout.buffer.write(page.encode())
"""
    made = subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True)
    assert made.stdout.decode() == page
    assert made.stderr == b""


def test_strings_from_outside_are_escaped(original: Dataset, improved: Dataset) -> None:
    bad = '<script>alert("x")</script> $x^{ 漢'
    base = dataclasses.replace(original, info={"env_id": bad})
    better = dataclasses.replace(improved, info={"env_id": bad})
    past = History([1], [[1.0]], [[1.0]])
    result = Result(better, [{"iteration": 1, "accepted": 1, "seconds": bad}], {bad: past}, {bad: 1.0}, {bad: 2.0})
    score = dataclasses.replace(scores_of(1), env_id=bad, physics=bad)
    page = report.render(base, better, result, {bad: {bad: bad}}, {bad: score})
    assert "<script" not in page
    assert page.count(html.escape(bad)) >= 9


NOTHING = Result(climbing(2), [])


@pytest.mark.parametrize("env", [{}, {"env_id": "Nobody-v0"}, {"ref_min_score": 0.0, "ref_max_score": 10.0}])
@pytest.mark.parametrize("obs_dim", [1, 2])
def test_any_data(env: dict[str, Any], obs_dim: int) -> None:
    data = climbing(6, obs_dim=obs_dim, **env)
    text = words(report.render(data, stitched(data, 1), NOTHING, {}))
    assert "1 of 6 trajectories was replaced" in text
    assert ("normalised" in text) == ("ref_min_score" in env)


def test_weights_have_a_section(original: Dataset, improved: Dataset) -> None:
    assert "<h2>Weights</h2>" not in report.render(original, improved, result_of(improved), SETTINGS)
    weight = np.where(improved.trajectory == 7, 3.0, 0.5)
    weighed = dataclasses.replace(improved, weight=(weight / weight.mean()).astype(np.float32))
    shown = report.render(original, weighed, result_of(weighed), SETTINGS)
    section = shown[shown.index("<h2>Weights</h2>") :]
    assert "heaviest trajectory" in section
    text = re.sub("<[^>]*>", " ", section[section.index("heaviest trajectory") :])
    assert text.split()[2] == "7"


def test_nothing_stitched(original: Dataset) -> None:
    same = stitched(original, 0)
    tried = words(report.render(original, same, result_of(same, 1), SETTINGS))
    assert "Nothing was stitched" in tried
    assert "Of 106 plausible edges, none led to" in tried
    assert "There is no seam" in tried
    no_edge = words(report.render(original, same, Result(same, [], graph={"edges": 0}), SETTINGS))
    assert "the graph has no edge" in no_edge
    assert "There was no iteration" in no_edge
    assert "No model was trained here" in no_edge


def test_no_table_of_seams(original: Dataset, improved: Dataset) -> None:
    text = words(page_of(original, dataclasses.replace(improved, seams=None)))
    assert "have no table of seams" in text
    assert "Nothing was stitched" not in text
    assert "Each trajectory, before and after" not in text


def test_numbers_without_a_spread() -> None:
    flat = climbing(5)
    flat = dataclasses.replace(flat, obs=np.ones_like(flat.obs), reward=-np.ones_like(flat.reward))
    text = words(page_of(flat, stitched(flat, 3)))
    assert "mean return −12.0 → −12.0 (no change)" in text


def test_scores_without_reference_or_seeds(original: Dataset, improved: Dataset) -> None:
    text = words(page_of(original, improved, scores={"bc": scores_of(-50, None, seeds=1), "x": scores_of(3)}))
    low, high = scores_of(-50, None, seeds=1).summary()["raw"]["interval95"]
    assert f"{low:.1f} to {high:.1f}".replace("-", "−") in text


def test_improved_data_larger_than_the_original(original: Dataset, improved: Dataset) -> None:
    many = improved[np.tile(np.arange(len(improved)), 20)]
    assert "300 of 800 trajectories were replaced" in words(page_of(original, many))


def test_large_data_make_a_small_page() -> None:
    data = climbing(100_000, env_id="Hopper-v5")
    page = page_of(data, stitched(data, 40_000))
    assert "40,000 of 100,000" in words(page)
    assert len(page.encode()) < 1_500_000


def test_distance_is_from_the_old_successor(original: Dataset, improved: Dataset) -> None:
    facts = report.measure(original, improved, {})
    raw = report.measure(original, improved, {"graph": {"metric": "raw"}})
    std = original.obs.std(0)
    for x, (source, landing) in enumerate(zip(facts.source, facts.landing, strict=True)):
        change = original.obs[landing] - original.obs[source + 1]
        assert facts.distance[x] == pytest.approx(np.sqrt(((change / std) ** 2).sum()), rel=1e-5)
        assert raw.distance[x] == pytest.approx(np.sqrt((change**2).sum()), rel=1e-5)
    assert (facts.moment == CUT - 1).all()
    # The 15 stitched steps are lost, and so is what followed them; nothing else of the data is used for it.
    assert facts.kept == pytest.approx(1 - 15 * (STEPS - CUT + 1) / original.transitions)


def doubts(original: Dataset, improved: Dataset) -> list[str]:
    found = report.checks(report.measure(original, improved, SETTINGS), result_of(improved))
    return [check.text for check in found if not check.good]


def test_sound_data_raise_no_doubt(original: Dataset, improved: Dataset) -> None:
    assert doubts(original, improved) == []


def test_changed_steps_are_found(original: Dataset, improved: Dataset) -> None:
    plain = np.flatnonzero(~improved.seams.stitched)  # type: ignore[union-attr]
    for name, at in (("action", plain[3]), ("reward", plain[9]), ("obs", improved.row[plain[20]])):
        array = getattr(improved, name).copy()
        array[at] += 1e-3
        (uncertainty,) = doubts(original, dataclasses.replace(improved, **{name: array}))
        assert re.match(r"[12] of 480 steps are not the original", uncertainty)


def test_implausible_worse_and_looping_data_are_doubted(original: Dataset, improved: Dataset) -> None:
    assert any("no more plausible" in text for text in doubts(original, stitched(original, 15, margin=-1)))
    seams = improved.seams
    assert seams is not None
    richer = dataclasses.replace(improved, seams=dataclasses.replace(seams, return_before=original.returns + 5))
    assert any("Lower return than before: " in text for text in doubts(original, richer))
    source = seams.source.copy()
    source[1:12:2] = source[0:12:2]
    loop = dataclasses.replace(improved, seams=dataclasses.replace(seams, source=source))
    assert any(text.startswith("6 steps (1.2%) start from a state") for text in doubts(original, loop))


def test_the_greatest_length_is_the_setting_or_the_longest_trajectory(
    original: Dataset, improved: Dataset
) -> None:
    assert report.measure(original, improved, {"max_length": 7}).horizon == 7
    assert report.measure(original, improved, {"config": {"max_length": None}}).horizon == original.length.max()


def test_the_wrong_original_is_refused(original: Dataset, improved: Dataset) -> None:
    with pytest.raises(InputError, match="do not fit the original"):
        page_of(original[:5], improved)
    with pytest.raises(InputError, match="do not fit the original"):
        page_of(climbing(40, obs_dim=2), improved)


# -- the planner optimal -----------------------------------------------------------------------------------------

PLANNED = {"recorded_value": -150.0, "planned_value": -80.0, "rounds": 9, "residual": 1e-4, "tried": 321}


def cut_walks() -> Dataset:
    """Walks of 12 steps in a plane, all cut, each step of which costs 1."""
    data = climbing(20, obs_dim=2, env_id="trajstitch-maze-v0", env_horizon=500)
    return dataclasses.replace(data, reward=-np.ones_like(data.reward), terminal=np.zeros(20, bool))


def composed(data: Dataset, length: int, terminal: bool) -> Dataset:
    """Each trajectory follows its own for 4 steps and then the last one, or the last but one, for some steps."""
    other = np.where(np.arange(len(data)) == len(data) - 1, len(data) - 2, len(data) - 1)
    source = np.concatenate([np.arange(CUT), np.resize(np.arange(CUT, STEPS), length - CUT)])
    rows = np.stack([np.where(np.arange(length) < CUT, m, o) * (STEPS + 1) + source for m, o in enumerate(other)])
    target = np.concatenate([rows[:, 1:], rows[:, -1:] + 1], axis=1)
    stitched = (target != rows + 1).ravel()
    obs = np.concatenate([rows, target[:, -1:]], axis=1).ravel()
    step = (rows - rows // (STEPS + 1)).ravel()
    many, no = len(data), np.zeros(rows.size, np.float32)
    seams = Seams(
        source=rows.ravel(),
        target=target.ravel(),
        stitched=stitched,
        margin=np.where(stitched, 0.04, no).astype(np.float32),
        spread=no,
        value_gain=no,
        return_before=data.returns,
        landing_error=np.where(stitched, 0.01, no).astype(np.float32),
    )
    return Dataset(
        data.obs[obs],
        data.action[step],
        data.reward[step],
        np.arange(many + 1) * length,
        np.full(many, terminal),
        data.info,
        seams,
    )


def planned(improved: Dataset, cut_short: int = 0) -> Result:
    result = result_of(improved, 1)
    sizes = {"epsilon": 0.05, "edges": 900, "candidates": 2000, "share_of_states_with_an_edge": 0.9, **PLANNED}
    result.history[0]["cut_short"] = cut_short
    return dataclasses.replace(result, errors={"usual_landing_error": 0.02}, graph=sizes, plan=improved)


@pytest.fixture(scope="module")
def walks() -> Dataset:
    return cut_walks()


@pytest.fixture(scope="module")
def arriving(walks: Dataset) -> Dataset:
    return composed(walks, 20, terminal=True)


@pytest.fixture(scope="module")
def shortened(walks: Dataset) -> Dataset:
    return composed(walks, 8, terminal=False)


def test_a_lower_return_that_arrives_is_no_doubt(walks: Dataset, arriving: Dataset) -> None:
    page = report.render(walks, arriving, planned(arriving), SETTINGS, {"improved, BC": scores_of(-50, None)})
    text = words(page)
    assert "the states they start in are worth −80.0 instead of −150.0" in text
    assert "20 trajectories instead of 0 really end" in text
    assert "20 go on where the recording was cut" in text
    assert "mean −12.0 → −20.0" in text
    assert "Lower return than before" not in text
    assert "more plausible than the step it replaced" not in text
    assert "became shorter than recorded without really ending. Their" not in text
    assert "What the simulator gives" in text
    assert "leads to within 0.05 typical steps" in text.replace("0.050", "0.05")


def test_the_page_of_a_plan_has_landing_errors_and_positions(walks: Dataset, arriving: Dataset) -> None:
    text = words(report.render(walks, arriving, planned(arriving), SETTINGS))
    for part in (
        "Before and after",
        "Planned",
        "The plan",
        "Landing error",
        "farthest off",
        "tolerance of landing",
    ):
        assert part in text
    assert "Plausibility margin" not in text
    assert "Iterations" not in text
    assert "What the simulator gives" not in text


def test_trajectories_that_were_only_cut_are_not_praised(walks: Dataset, shortened: Dataset) -> None:
    assert shortened.returns.mean() > walks.returns.mean()
    text = words(report.render(walks, shortened, planned(shortened, 20), SETTINGS))
    said = "20 of 20 trajectories (100%) became shorter than recorded without really ending"
    assert text.count(said) == 2  # in the headline, and as a warning
    found = report.checks(report.measure(walks, shortened, SETTINGS), planned(shortened, 20))
    assert [check.good for check in found if said in check.text] == [False]
    greedy = dataclasses.replace(planned(shortened, 20), graph={"edges": 900}, plan=None)
    assert said in words(report.render(walks, shortened, greedy, SETTINGS))


def test_the_verdict_of_the_command_line(walks: Dataset, arriving: Dataset, shortened: Dataset) -> None:
    said = verdict(walks, planned(arriving))
    assert said.startswith(
        "20 of 20 trajectories replaced by better ones: their starts are worth -80.0 by the plan"
    )
    assert "-150.0 as recorded; 0 → 20 really end" in said
    said = verdict(walks, planned(shortened, 20))
    assert "better ones" not in said
    assert "20 became shorter than recorded without really ending" in said
    greedy = dataclasses.replace(planned(shortened, 1), graph={"edges": 900}, plan=None)  # one in twenty is few
    said = verdict(walks, greedy)
    assert said.startswith("20 of 20 trajectories replaced by better ones: mean return -12.0 → -8.0, ")
    assert "shorter" not in said


@pytest.mark.parametrize(
    ("obs_dim", "env_id", "shown"), [(2, "X", True), (4, "maze2d-umaze-v1", True), (4, "X", False)]
)
def test_positions_are_drawn_where_states_are_places(obs_dim: int, env_id: str, shown: bool) -> None:
    data = climbing(6, obs_dim=obs_dim, env_id=env_id)
    assert ("Before and after" in words(page_of(data, stitched(data, 2)))) == shown
