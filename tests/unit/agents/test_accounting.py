"""The account of groups: the sum holds, and what breaks it is one clear error."""

import pytest

from arise.agents.accounting import GroupAccount
from arise.errors import AccountingError


def test_every_group_is_closed_once() -> None:
    account = GroupAccount()
    for serial in range(5):
        account.start(serial)
    account.train(0)
    account.drop(3, "running_too_old")
    account.fail(1, "sandbox")
    account.require([2, 4])
    assert account.in_flight == (2, 4)
    assert (account.num_started, account.num_trained) == (5, 1)
    assert (dict(account.dropped), dict(account.failed)) == ({"running_too_old": 1}, {"sandbox": 1})
    for close in (account.train, lambda n: account.drop(n, "x"), lambda n: account.fail(n, "x")):
        with pytest.raises(AccountingError, match=r"group 0 is .* but is not in flight"):
            close(0)
    with pytest.raises(AccountingError, match="group 2 was started twice"):
        account.start(2)
    account.require([2, 4])


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ([2], r"held by nobody: \[4\]"),
        ([2, 4, 7], r"held but not in flight: \[7\]"),
        ([2, 4, 4], "does not add up"),
    ],
)
def test_a_group_that_was_lost_or_doubled_is_an_error(held: list[int], message: str) -> None:
    account = GroupAccount()
    for serial in (2, 4):
        account.start(serial)
    with pytest.raises(AccountingError, match=message):
        account.require(held)


def test_the_account_goes_on_after_a_restart() -> None:
    account = GroupAccount()
    for serial in range(3):
        account.start(serial)
    account.drop(1, "running_too_old")
    restored = GroupAccount()
    restored.load_state_dict(account.state_dict())
    restored.train(0)
    restored.require([2])
    assert restored.state_dict() == {
        "num_started": 3,
        "num_trained": 1,
        "dropped": {"running_too_old": 1},
        "failed": {},
        "in_flight": (2,),
    }
