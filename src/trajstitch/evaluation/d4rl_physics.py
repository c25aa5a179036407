"""D4RL physics: make a MuJoCo model move as in the version that recorded D4RL; also silence MuJoCo's warnings."""

from __future__ import annotations

import threading
from types import TracebackType

import mujoco
import numpy as np

# Fields of a compiled model that follow from the inertia of bodies; mj_setConst derives the rest.
_INERTIAL = ("body_mass", "body_inertia", "body_ipos", "body_iquat")
# Flags that let MuJoCo skip a frame equal to the body's or its inertia's.
_SAME_FRAME = ("body_sameframe", "geom_sameframe", "site_sameframe")

_TWO_SPHERES = """<mujoco><worldbody>
  <geom type="sphere" size="1" margin="1"/>
  <body pos="0 0 2"><freejoint/><geom type="sphere" size="1" margin="1"/></body>
</worldbody></mujoco>"""


def restore_d4rl(model: mujoco.MjModel, data: mujoco.MjData, path: str) -> None:
    """Change `model`, compiled from the XML file `path`, to the physics D4RL was recorded with.

    Two rules have changed since. A capsule had the mass and inertia of a cylinder longer by one radius than the
    distance between the centres of its end spheres. And two geoms touched at the larger of their margins, not at
    the sum.
    """
    old = _compile_with_cylinders(path)
    for name in _INERTIAL + _SAME_FRAME:
        getattr(model, name)[:] = getattr(old, name)
    if _margins_add() and len(np.unique(model.geom_margin)) == 1:
        model.geom_margin[:] /= 2
    mujoco.mj_setConst(model, data)


def _compile_with_cylinders(path: str) -> mujoco.MjModel:
    """Compile the model with those cylinders for its capsules, for masses and inertias only, not for contacts.

    In this way MuJoCo's own compiler handles densities and bodies with several geoms.
    """
    spec = mujoco.MjSpec.from_file(path)
    # HalfCheetah's file fixes the total mass. It is set below, because the compiler of MuJoCo 4 would warn.
    total, spec.compiler.settotalmass = spec.compiler.settotalmass, -1
    model = spec.compile()
    for geom in spec.geoms:
        if geom.type != mujoco.mjtGeom.mjGEOM_CAPSULE:
            continue
        radius, half, _ = model.geom_size[geom.id]
        geom.type = mujoco.mjtGeom.mjGEOM_CYLINDER
        geom.size = [radius, half + radius / 2, 0.0]
        # Use the compiled pose, whether the file gave it by end points, angles or a quaternion.
        geom.fromto = np.full(6, np.nan)
        geom.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
        geom.pos, geom.quat = model.geom_pos[geom.id], model.geom_quat[geom.id]
    model = spec.compile()
    if total > 0:
        mujoco.mj_setTotalmass(model, total)
    return model


def _margins_add() -> bool:
    """Whether this MuJoCo adds the margins of two geoms; MuJoCo 4 does, 3.3 takes the larger."""
    model = mujoco.MjModel.from_xml_string(_TWO_SPHERES)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return bool(data.contact[0].includemargin > 1)


def _drop(message: str) -> None:
    """MuJoCo warning handler that ignores the message."""


class _Quiet:
    """While any thread is inside, MuJoCo's warnings are neither printed nor written to MUJOCO_LOG.TXT.

    A handler that the caller has installed is left alone. MuJoCo's worker threads may call ours at any time:
    they wait for the interpreter lock, which `rollout` and `mj_step` do not hold.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if mujoco.get_mju_user_warning() is None:
                mujoco.set_mju_user_warning(_drop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and mujoco.get_mju_user_warning() is _drop:
                mujoco.set_mju_user_warning(None)


quiet = _Quiet()
