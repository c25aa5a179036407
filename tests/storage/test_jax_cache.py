"""Where compiled programs are kept, and where not."""

from unittest.mock import patch

import jax
import pytest

from trajstitch.storage.jax_cache import keep_compiled


@pytest.fixture
def settings(monkeypatch):
    """What would be set where the environment says nothing."""
    made = {}
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    with patch.object(jax.config, "update", made.__setitem__):
        yield made


def test_on_a_cpu_nothing_is_kept(settings):
    keep_compiled()
    assert settings == {}


def test_for_a_gpu_programs_are_kept_in_the_users_cache_folder(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keep_compiled()
    assert settings["jax_compilation_cache_dir"] == str(tmp_path / "trajstitch" / "compiled")
    monkeypatch.delenv("XDG_CACHE_HOME")
    keep_compiled()
    assert settings["jax_compilation_cache_dir"].endswith("/.cache/trajstitch/compiled")
