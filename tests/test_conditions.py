"""Conditions on episodes: they mean what they say, and nothing but a condition can be written."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajstitch.conditions import where
from trajstitch.episodes import Episodes
from trajstitch.errors import InputError

NAN = np.nan
EPISODES = Episodes(
    {
        "episode": np.arange(4.0),
        "return": np.array([10.0, 200.0, NAN, 150.0]),
        "jumps": np.array([0.0, 5.0, 1.0, 2.0]),
        "success": np.array([1.0, 0.0, 1.0, 1.0]),
        "weight": np.full(4, NAN),
    },
    {1: ["jumps"]},
)


@pytest.mark.parametrize(
    ("condition", "chosen"),
    [
        ("return > 100 and jumps < 3", [3]),
        ("return>100 or jumps<1", [0, 1, 3]),
        ("not outlier", [0, 2, 3]),
        ("success", [0, 2, 3]),
        ("success == true and not (jumps >= 2)", [0, 2]),
        ("0 < jumps <= 2", [2, 3]),
        ("return / 2 - 5 == 0 * jumps", [0]),
        ("-jumps > -1.5", [0, 2]),
        ("jumps + 1 * 2 > 3", [1, 3]),
        ("return == return", [0, 1, 3]),  # what is not known equals nothing
        ("return != 10", [1, 3]),
        ("return < 1e2 or return > 1.9e2", [0, 1]),
        ("not success or jumps / 0 > 1 and episode == 3", [1, 3]),
        (" ( ( jumps ) ) > .5 ", [1, 2, 3]),
        ("(jumps > 1) + success == 2", [3]),
    ],
)
def test_what_is_chosen(condition, chosen):
    assert np.flatnonzero(where(EPISODES, condition)).tolist() == chosen


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("", "it ends where a name or a number is needed"),
        ("return >", "it ends where"),
        ("return > 100 and", "it ends where"),
        ("retrun > 1", "there is no 'retrun'; did you mean return?"),
        ("__import__ > 1", "there is no '__import__'; known are episode, return"),
        ("weight > 1", "weight is not known of these data"),
        ("return", "a number stands where a comparison is needed"),
        ("return and jumps > 1", "a number stands where"),
        ("(return > 1", "a bracket is not closed"),
        ("return > 1)", "')' was not expected"),
        ("return > 1 jumps", "'jumps' was not expected"),
        ("return = 1", "'=' is not known"),
        ("return > 1; jumps", "';' is not known"),
        ("f(1)", "there is no 'f'"),
        ("return.real > 1", "'.' is not known"),
        ("'a' == 'a'", '"\'" is not known'),
        ("(" * 200, "200 letters"),
    ],
)
def test_what_is_refused(condition, sentence):
    with pytest.raises(InputError) as told:
        where(EPISODES, condition)
    assert sentence in str(told.value)


@given(st.text("return jumps()<>=!and or not +-*/.0123abc'\"[]", max_size=40))
@settings(max_examples=150, deadline=None)
def test_any_text_is_a_condition_or_refused(text):
    with contextlib.suppress(InputError):
        assert where(EPISODES, text).dtype == bool


def test_the_deepest_condition_is_read():
    assert where(EPISODES, "(" * 74 + "1" + ")" * 74).all()
    assert where(EPISODES, "not " * 37 + "1").sum() == 0
