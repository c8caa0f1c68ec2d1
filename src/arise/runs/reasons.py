"""Why: sentences for the pool's events and for the choice of tasks, with the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def why_event(event: Mapping[str, Any], *, eta_low: float, eta_high: float) -> str:
    """Why a pair got this event.

    Example: `p̂ = 25.0 % (2 of 8) is at or below η_low = 0.3: the skill is switched on`.
    """
    kind = event["type"]
    if kind == "created":
        evidence = event["evidence"]
        return (
            f"proposed from {len(evidence['issues'])} records with the issue and "
            f"{len(evidence['contrasts'])} without it"
        )
    if kind == "imported":
        return "taken over from another run's pool"
    count = event["num_applicable"]
    if not count:
        return "no applicable verdict in this window: nothing changes"
    rate = f"p̂ = {event['pass_rate']:.1%} ({event['num_passes']} of {count})"
    if kind == "activated":
        return f"{rate} is at or below η_low = {eta_low:g}: the skill is switched on"
    if kind == "refined":
        return (
            f"{rate} is at or below η_low = {eta_low:g} although the skill is on: its text was "
            f"written anew from {event['num_records']} failures under the old one"
        )
    if kind == "hidden":
        return f"{rate} is above η_low = {eta_low:g}: the skill is no longer shown"
    if kind == "retired":
        return f"{rate} is at or above η_high = {eta_high:g}: the requirement is met, the pair goes"
    if event["reason"] == "between_bounds":
        return f"{rate} leaves it {event['state']}"
    return f"{rate}; the skill stays as it is: {event['reason'].replace('_', ' ')}"


def why_task(slot: Mapping[str, Any]) -> str:
    """Why the sampler chose a recorded slot's task.

    Example: `discovery (ρ = 0.44): some rubric has no verdict on it yet; tried 4 times before`.
    """
    numbers = slot.get("sampled_numbers", {})
    reason = slot["sampled_by"]
    if reason == "adaptive":
        return (
            f"adaptive: {slot['sampled_capability']} on tasks of type {slot['sampled_tag']} "
            f"(passes S = {numbers['passes']:.3g}, failures F = {numbers['failures']:.3g}, drawn "
            f"p̃ = {numbers['drawn_pass_rate']:.3f})"
        )
    if reason == "vade":
        return (
            f"VADE: α = {numbers['passes']:.3g}, β = {numbers['failures']:.3g}, drawn "
            f"p = {numbers['drawn_pass_rate']:.3f} is among the largest p(1-p)²"
        )
    if reason not in ("discovery", "fallback"):
        return reason
    tried = _tried(int(numbers["num_attempts"]))
    if reason == "discovery":
        rho = numbers["discovery_probability"]
        return f"discovery (ρ = {rho:.2f}): some rubric has no verdict on it yet; {tried}"
    return f"fallback: no task type with evidence had room left; {tried}"


def _tried(count: int) -> str:
    if count == 0:
        return "never tried before"
    return "tried once before" if count == 1 else f"tried {count} times before"
