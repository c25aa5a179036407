"""What `trajstitch train` can set of single methods, in groups for --help; None leaves the method's own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

# What is left out is None, which --help need not say. The method's own value stands in the text.
Number = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]
Count = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
Text = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="")]

# No method is imported, so that --help answers at once; the names are those of the methods' settings.


@dataclass(frozen=True)
class Several:
    """Of several methods, each with its own meaning."""

    rule: Text = None
    """The paper's settings for this data set, such as hopper-medium-replay: td3tsbc's switch, the search of mbop
    and tsmbop."""
    samples: Count = None
    """cql: actions from each of three sources (10); mbop, tsmbop: imagined futures (the rule's, else 100);
    diffuser: plans drawn (64)."""
    plan_horizon: Count = None
    """mbop, tsmbop: steps of an imagined future (the rule's, else 2); diffuser: of a plan (32)."""
    discount: Number = None
    """Offline RL, tsmbop: of future rewards (0.99); diffuser: the same (0.997)."""


@dataclass(frozen=True)
class Cloning:
    """Of the bc methods."""

    percent: Number = None
    """Clone the best percent of trajectories by return (percent-bc: 10)."""
    value_steps: Count = None
    """weighted-bc: gradient steps of the value function (30000)."""


@dataclass(frozen=True)
class Offline:
    """Of td3bc, td3tsbc, iql, cql, mopo and morel, and of tsmbop's value function."""

    target_rate: Number = None
    """How fast target networks follow (0.005)."""


@dataclass(frozen=True)
class TD3:
    """Of td3bc and td3tsbc; the last two of td3tsbc."""

    alpha: Number = None
    """How much the critic counts against cloning (2.5)."""
    noise: Number = None
    """Std on the target's action, in half-ranges of the action (0.2)."""
    noise_clip: Number = None
    """At most so much of it (0.5)."""
    delay: Count = None
    """Critic steps an actor step (2)."""
    switch: Count = None
    """First step on the improved data (the rule's, else 80% of the steps)."""
    freeze_critic: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Train only the actor from then on."""


@dataclass(frozen=True)
class IQL:
    """Of iql."""

    expectile: Number = None
    """Of the value function (0.7)."""
    temperature: Number = None
    """Of the advantage in the cloning weight (3)."""
    weight_clip: Number = None
    """The largest weight (100)."""


@dataclass(frozen=True)
class CQL:
    """Of cql; the last three also of mopo and morel."""

    min_q_weight: Number = None
    """Of the conservative term (5; 10 on data of experts)."""
    pushed: Count = None
    """Of the sampled actions, how many a state are pushed down, drawn by weight; 0: all (0)."""
    actor_rate: Number = None
    """Adam's learning rate of actor and temperature (1e-4; morel: 3e-4); --rate is the critic's."""
    actor_schedule: Text = None
    """constant, or cosine: that rate falls to 0 over all steps (constant; mopo, morel: cosine)."""
    target_entropy: Number = None
    """The policy's entropy is kept at this (minus the number of actions)."""


@dataclass(frozen=True)
class ModelBased:
    """Of mopo and morel."""

    rollout_steps: Count = None
    """Steps of each rollout, between one renewal and the next (5)."""
    rollouts: Count = None
    """Side by side (10000)."""
    refresh: Count = None
    """Steps between rollouts (200)."""
    onward: Number = None
    """Chance that a rollout goes on where its last one was, instead of beginning in the data (0.9)."""
    real: Number = None
    """Share of a batch that is data (0.05)."""
    terminate: Text = None
    """never, or env: rollouts end by the rule of the data's environment (never)."""
    world_steps: Count = None
    """Gradient steps of the world (200000)."""
    world_rate: Number = None
    """Adam's learning rate of the world (1e-3)."""
    world_width: Count = None
    """Units of its hidden layers (200)."""
    world_depth: Count = None
    """Hidden layers (4)."""
    world_activation: Text = None
    """relu or silu, between layers (silu)."""
    world_seed: Count = None
    """Of the world, which serves all seeds (0)."""


@dataclass(frozen=True)
class MOPO:
    """Of mopo."""

    penalty: Number = None
    """Of the world's largest std (1)."""


@dataclass(frozen=True)
class MOReL:
    """Of morel."""

    threshold: Number = None
    """Disagreement beyond which a rollout halts, in units of the data's largest (the data's 99% quantile)."""
    halt_penalty: Number = None
    """What halting costs beyond the data's least reward (30)."""


@dataclass(frozen=True)
class MBOP:
    """Of mbop and tsmbop."""

    members: Count = None
    """Networks of each ensemble (3)."""
    l2: Number = None
    """Pull of their weights to 0 (1e-5)."""
    kappa: Number = None
    """How much more a better future counts (the rule's, else 1)."""
    sigma: Number = None
    """Std of the noise on actions, in half-ranges of the action (the rule's, else 0.2)."""
    beta: Number = None
    """Share of the last plan in the new one (the rule's, else 0)."""
    return_horizon: Count = None
    """mbop: steps that the return at a plan's end looks ahead (10)."""
    value_rate: Number = None
    """tsmbop: Adam's learning rate of the value function (3e-4)."""


@dataclass(frozen=True)
class Diffuser:
    """Of diffuser."""

    blocks: Count = None
    """Residual blocks of each level, down and up (2)."""
    diffusion_steps: Count = None
    """From noise to a plan (20)."""
    guide_scale: Number = None
    """Of a push along the return's slope, in units of the reward (0.1; 0: no guidance)."""
    guide_steps: Count = None
    """Pushes a diffusion step (2)."""
    guide_stop: Count = None
    """The last diffusion steps, which push no more (2)."""
    sample_noise: Number = None
    """Std of what is drawn at a diffusion step, in units of the posterior's (0.5)."""
    end_penalty: Number = None
    """Off the last reward of an episode that really ended (100; give 0 where an end is a success)."""
    action_weight: Number = None
    """Of the first action in the loss (10)."""
    ema: Number = None
    """How much of the average of weights, which is played, stays at a step (0.995)."""


def given(group: Any) -> dict[str, Any]:
    """The settings of a group that were given."""
    settings = {field.name: getattr(group, field.name) for field in dataclasses.fields(group)}
    return {name: value for name, value in settings.items() if value is not None and value is not False}
