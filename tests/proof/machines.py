"""How long state machines are searched, and with what."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def search(machine: type[RuleBasedStateMachine], *, examples: int, steps: int = 25, shrink: bool = True) -> None:
    """Let Hypothesis look for a history that ends badly."""
    phases = tuple(Phase) if shrink else (Phase.generate,)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, phases=phases, database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
