"""Behaviour decides: the expert solves everything, and fails where a needed behaviour is off."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest

from arise.agents.shell import ShellAgent
from arise.environments.base import ExecResult
from arise.tasks.shellworld import episode
from arise.tasks.shellworld.behaviours import Behaviour, observe_behaviours
from arise.tasks.shellworld.expert import Disposition, Seen
from arise.tasks.shellworld.generate import generate_tasks
from arise.tasks.shellworld.local_shell import LocalShell
from arise.tasks.shellworld.spec import Need, TaskSpec
from arise.tasks.shellworld.transcripts import make_transcripts
from unit.shellworld.episodes import play, reward_of

OFF = {
    Need.READ: Disposition(read=False),
    Need.HEED: Disposition(heed=False),
    Need.VERIFY: Disposition(verify=False),
    Need.FINISH: Disposition(finish=False),
}


def one_of_each() -> list[TaskSpec]:
    """One task for every family and set of needs."""
    found: dict[tuple[str, frozenset[Need]], TaskSpec] = {}
    for split in ("train", "unseen"):
        for spec in generate_tasks(split, 600, 11):
            found.setdefault((spec.family, spec.needs), spec)
    return list(found.values())


SPECS = one_of_each()


@pytest.fixture(scope="module")
def shell() -> Iterator[LocalShell]:
    with LocalShell() as opened:
        yield opened


def test_success_with_and_without_each_behaviour(
    shell: LocalShell, capsys: pytest.CaptureFixture[str]
) -> None:
    """A behaviour that is switched off costs exactly the tasks that need it."""
    table: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for spec in SPECS:
        reward, trace, submitted = play(shell, spec, Disposition())
        assert (reward, submitted) == (1.0, True), spec.id
        shows = observe_behaviours(spec.instruction, trace, submitted=submitted)
        assert all(value is not False for value in shows.values()), (spec.id, trace, shows)
        table[spec.family]["all"].append(reward)
        for need, disposition in OFF.items():
            reward, trace, submitted = play(shell, spec, disposition)
            assert reward == float(need not in spec.needs), (spec.id, need, trace)
            shows = observe_behaviours(spec.instruction, trace, submitted=submitted)
            if need in spec.needs:
                assert shows[Behaviour(need)] is False, (spec.id, need, trace)
            table[spec.family][f"no {need}"].append(reward)
    with capsys.disabled():
        print()
        for family, row in sorted(table.items()):
            rates = "  ".join(f"{name} {sum(v) / len(v):.2f}" for name, v in row.items())
            print(f"{family:15} {rates}")


def test_wasted_turns_run_out_of_budget(shell: LocalShell) -> None:
    hard = [spec for spec in SPECS if len(spec.needs) == 3]
    wasteful = [play(shell, spec, Disposition(waste=1.0))[0] for spec in hard]
    assert sum(wasteful) < len(hard) / 2


def test_solutions_pass_and_doing_nothing_fails(shell: LocalShell) -> None:
    for spec in SPECS:
        assert reward_of(shell, spec, spec.plan.solution()) == 1.0, spec.id
        assert reward_of(shell, spec, []) == 0.0, spec.id


def test_at_least_two_families_begin_with_a_failing_command(shell: LocalShell) -> None:
    failing = set()
    for spec in SPECS:
        _, trace, _ = play(shell, spec, Disposition(read=False))
        if trace[len(spec.plan.opening)].failed:
            failing.add(spec.family)
    assert {"missing_input", "fix_script"} <= failing


def test_a_time_out_ends_the_command_only(shell: LocalShell) -> None:
    with LocalShell(timeout_s=0.3) as quick:
        folder = quick.open(SPECS[0])
        assert quick.run(folder, "sleep 5").exit_code == 124
        assert quick.run(folder, "echo 3").output == "3\n"


def test_a_command_cannot_leave_the_scratch_folder(shell: LocalShell) -> None:
    folder = shell.open(SPECS[0])
    assert shell.run(folder, "echo x > /etc/shellworld").exit_code != 0
    assert shell.run(folder, "cd / && exit 7").exit_code == 7
    assert shell.run(folder, "pwd").output.strip() == str(folder)


def test_observations_are_those_of_the_shell_agent() -> None:
    agent = ShellAgent(
        system_prompt=episode.SYSTEM_PROMPT,
        action_format="raw",
        submit=episode.SUBMIT,
        max_turns=episode.MAX_TURNS,
        max_output_tokens=episode.MAX_OUTPUT_TOKENS,
        command_timeout_s=5.0,
        max_observation_chars=episode.MAX_OBSERVATION_CHARS,
        observation_role="tool",
    )
    for code, output in ((0, ""), (0, "a\nb\n"), (2, "need key jade\n"), (1, ""), (0, "x" * 900)):
        mine = episode.observation(Seen(exit_code=code, output=output))
        assert mine == agent.describe(ExecResult(exit_code=code, output=output))


def test_transcripts_are_functions_of_their_seed() -> None:
    one, two = make_transcripts(40, 4), make_transcripts(40, 4)
    assert one == two
    assert all(transcript.messages[0][0] == "system" for transcript in one)
    assert {role for t in one for role, _ in t.messages} == set(episode.ROLES)
