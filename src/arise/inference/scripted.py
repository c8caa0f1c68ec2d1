"""An engine that plays a script: for dry runs and for trying the road without a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from arise.errors import ConfigError, InferenceError
from arise.inference.base import Completion, Engine, GenerationRequest, WeightReport

SessionKey = tuple[int, int]


class ScriptedEngine(Engine):
    """Answers each session's calls with the texts of its script, one per turn.

    Everything but the model is real: limits, versions, end tokens and failures behave as with an
    engine that samples, so configuration, sandboxes, verifier and judge can be tried in seconds.
    What it answers is not the policy's: its log-probabilities are a constant and mean nothing.

    Args:
        script: The texts of a session by turn: a mapping, or a function of (task, rollout).
        encode: Text to token ids, without special tokens.
        end_token_id: Added after each text, as a sampled end of turn.
        max_context_tokens: Prompt and answer together never exceed it; a text that does not fit
            is cut and ends with `"length"`.
        logprob: Log-probability that every token gets.
        failures: (session, turn) pairs, turns from 0, whose call gives an `InferenceError`. A
            failed call is not a turn played: asked again, it fails again.

    Attributes:
        version: Version of the last weights; -1 before any.
        requests: All calls so far, in order, for inspection.

    Example:
        >>> engine = ScriptedEngine(
        ...     script={(0, 0): ["ls", "exit"]},
        ...     encode=lambda text: list(text.encode()),
        ...     end_token_id=0,
        ...     max_context_tokens=64,
        ... )
    """

    is_concurrent = False

    def __init__(
        self,
        *,
        script: Mapping[SessionKey, Sequence[str]] | Callable[[SessionKey], Sequence[str]],
        encode: Callable[[str], Sequence[int]],
        end_token_id: int,
        max_context_tokens: int,
        logprob: float = -1.0,
        failures: Collection[tuple[SessionKey, int]] = (),
    ) -> None:
        if max_context_tokens < 1:
            raise ConfigError(f"engine.max_context_tokens must be >= 1, got {max_context_tokens}")
        if not logprob <= 0:
            raise ConfigError(f"engine.logprob must be <= 0, got {logprob}")
        self.max_context_tokens = max_context_tokens
        self.version = -1
        self.requests: list[GenerationRequest] = []
        self._script = script
        self._encode = encode
        self._end_token_id = end_token_id
        self._logprob = logprob
        self._failures = frozenset(failures)
        self._turns: dict[SessionKey, int] = {}

    @property
    def dtype(self) -> None:
        """No weights are held, so what was given is reported as it is."""
        return None

    async def start(self) -> None:
        """Nothing to bring up."""

    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        """Answer each request with its session's next text, or with its error."""
        self.requests += requests
        answers: list[Completion | InferenceError] = []
        for request in requests:
            try:
                answers.append(self._answer(request))
            except InferenceError as error:
                answers.append(error)
        return answers

    def _answer(self, request: GenerationRequest) -> Completion:
        session, turn = request.session, self._turns.get(request.session, 0)
        if (session, turn) in self._failures:
            raise InferenceError(f"scripted failure of session {session} at turn {turn}")
        room = self.max_context_tokens - len(request.prompt_token_ids)
        if room < 1:
            raise InferenceError(
                f"the prompt has {len(request.prompt_token_ids)} tokens and fills the context of "
                f"{self.max_context_tokens} (engine.max_context_tokens, session {session})"
            )
        texts = self._texts(session)
        if turn >= len(texts):
            raise InferenceError(f"the script of session {session} ends after {len(texts)} turns")
        self._turns[session] = turn + 1
        token_ids = [*self._encode(texts[turn]), self._end_token_id]
        limit = min(request.sampling.max_tokens, room)
        is_cut = len(token_ids) > limit
        token_ids = token_ids[:limit]
        return Completion(
            token_ids=tuple(token_ids),
            logprobs=(self._logprob,) * len(token_ids),
            policy_versions=(self.version,) * len(token_ids),
            finish_reason="length" if is_cut else "stop",
        )

    def _texts(self, session: SessionKey) -> Sequence[str]:
        if callable(self._script):
            return self._script(session)
        return self._script.get(session, ())

    async def release(self, session: SessionKey) -> None:
        """Forget how far a session is; its script starts again."""
        self._turns.pop(session, None)

    async def load_weights(self, weights: Mapping[str, Any], *, version: int) -> WeightReport:
        """Take the version and report the fingerprints of what was given: there is no model."""
        # torch is imported only here, so that a dry run without weights stays light.
        from arise.inference.weights import fingerprints

        self.version = version
        return WeightReport(version=version, fingerprints=fingerprints(weights))

    async def rest(self) -> None:
        """Nothing to leave: there is no cache to speak of."""

    async def stop(self) -> None:
        """Nothing to shut down."""
