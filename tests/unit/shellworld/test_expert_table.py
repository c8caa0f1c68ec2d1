"""The table of what each behaviour is worth."""

from __future__ import annotations

import pytest

from arise.tasks.shellworld.expert_table import main, success_by_family
from arise.tasks.shellworld.generate import generate_tasks
from arise.tasks.shellworld.spec import Need

COLUMN = {
    Need.READ: "does not read",
    Need.HEED: "does not heed",
    Need.VERIFY: "does not verify",
    Need.FINISH: "does not finish",
}


def test_a_behaviour_costs_the_share_of_tasks_that_need_it() -> None:
    specs = generate_tasks("train", 200, 3)
    table = success_by_family(specs)
    for family, row in table.items():
        mine = [spec for spec in specs if spec.family == family]
        assert row["complete"] == (len(mine), 1.0)
        for need, column in COLUMN.items():
            without = sum(need not in spec.needs for spec in mine) / len(mine)
            assert row[column] == (len(mine), pytest.approx(without))
        assert row["wastes turns"][1] <= 1.0
    assert any(row["wastes turns"][1] < 1.0 for row in table.values())


def test_the_command_prints_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--count", "20"])
    header, rule, *rows = capsys.readouterr().out.splitlines()
    assert header.count("|") == rule.count("|") == rows[0].count("|")
    assert rows[-1].startswith("| encode_text |")
