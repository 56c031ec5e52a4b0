"""How long this process has compiled: time that no update took."""

import time

import jax.monitoring

_EVENTS = ("jaxpr_to_mlir_module_duration", "backend_compile_duration")
_spent = [0.0]


def _note(event: str, seconds: float, **about: object) -> None:
    del about
    if event.endswith(_EVENTS):
        _spent[0] += seconds


jax.monitoring.register_event_duration_secs_listener(_note)


def seconds() -> float:
    """How long JAX has lowered and compiled programs, since this module's import."""
    return _spent[0]


def working() -> float:
    """A clock, in seconds, that stands still while JAX compiles."""
    return time.monotonic() - seconds()
