"""Mazes drawn with characters."""

from types import SimpleNamespace

import numpy as np

from trajstitch.data import Trajectory, from_trajectories
from trajstitch.report.terminal import draw_maze, side_by_side, spread_out

# A corridor with a dead end; cells are 2 wide, and row 0 is at the top.
WALLS = np.array([list(row) for row in ("#####", "#...#", "#.###", "#####")]) == "#"
MAZE = SimpleNamespace(
    map=WALLS,
    origin=np.array([0.0, 6.0]),
    pitch=np.array([2.0, -2.0]),
    start=np.array([[2, 1]]),
    goal=np.array([6.0, 4.0]),
)


def walk(*places):
    steps = len(places) - 1
    return Trajectory(np.array(places, float), np.zeros((steps, 2)), np.zeros(steps), False)


def test_a_known_path_is_drawn_where_it_leads():
    up_and_right = np.array([[1.5, 2.0], [1.5, 4.0], [2.5, 4.0], [3.5, 4.0]])
    assert draw_maze(MAZE, [up_and_right]) == [
        "████████",
        "█•••  G█",
        "█•S█████",
        "████████",
    ]


def test_of_paths_that_meet_the_first_is_seen():
    first, second = np.array([[3.5, 4.0]]), np.array([[3.5, 4.0], [4.5, 4.0]])
    assert draw_maze(MAZE, [first, second], "ab")[1] == "█  ab G█"


def test_walks_are_chosen_that_pass_other_places():
    data = from_trajectories(
        [walk((2, 2), (2, 4)), walk((2, 2), (2, 4)), walk((6, 4), (5, 4), (4, 4)), walk((6, 4), (5, 4))]
    )
    chosen = spread_out(MAZE, data, 5)
    assert [path.tolist() for path in chosen] == [data[2].obs.tolist(), data[0].obs.tolist()]


def test_pictures_stand_side_by_side_under_their_titles():
    assert side_by_side({"one": ["##", "##"], "two": ["#"]}, gap=2) == "one  two\n##   #\n##"
