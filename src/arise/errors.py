"""The product's error types: one per boundary.

A bad rollout is data, not a crash: the errors below `AriseError` that concern one rollout are
caught at the rollout boundary, recorded as a `RolloutFailure`, counted and excluded. A
`ConfigError` ends the program with exit code 2 and no traceback.
"""


class AriseError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(AriseError, ValueError):
    """The user asked for something impossible; the message names the key, value and choices."""


class InferenceError(AriseError):
    """The engine failed, or its answer cannot be trusted (lengths that do not match)."""


class SandboxError(AriseError):
    """A sandbox could not start, or died."""


class VerifierError(AriseError):
    """The verifier could not decide: never a reward of 0."""


class HarnessError(AriseError):
    """An agent program could not be run, or never spoke to the model."""


class JudgeError(AriseError):
    """The judge could not be reached or gave no answer: verdicts are invalid, never fail."""


class ReflectionError(AriseError):
    """The reflection model gave no usable answer: the pool stays as it is."""


class AccountingError(AriseError):
    """Groups of rollouts were lost or counted twice: a fault of the program, never of a rollout."""


class RankError(AriseError):
    """One of several training processes failed, and the others cannot go on."""


class WeightSyncError(AriseError):
    """The engine does not play the policy that is being trained."""


def one_line(error: BaseException, limit: int = 500) -> str:
    """Type and message of `error` on one line of at most `limit` characters."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:limit]
