"""Builds the tiny policy: `python -m arise.tasks.shellworld.build --out FOLDER`.

Tokenizer, demonstrations and, on machines that compute alike, weights are functions of the seed.
Without `--out` the bundled policy is replaced.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from arise.tasks.shellworld import measure
from arise.tasks.shellworld.episode import CONTEXT_TOKENS, MAX_OUTPUT_TOKENS, MAX_TURNS
from arise.tasks.shellworld.tokenizer import build_tokenizer
from arise.tasks.shellworld.transcripts import MIXTURE, make_transcripts
from arise.tasks.shellworld.warmstart import WarmStart, train

_CARD = """# The tiny shell policy

A Llama of {parameters:,} parameters ({layers} layers, width {hidden}, {vocabulary:,} tokens) that
has seen {transcripts:,} synthetic transcripts of the `shellworld` suite and nothing else. It is
made to be trained by reinforcement learning on a laptop: it knows the commands and copies names,
but rarely shows the behaviours that decide whether a task is solved. It is of no use for anything
else.

- Built by `python -m arise.tasks.shellworld.build --seed {seed}`{duration}.
- Chat roles: system, user, assistant, tool. One command a reply; `submit` ends an episode.
- Limits it was made for: {turns} turns, {output} tokens a reply, {context} tokens of context.
- Demonstrators show a behaviour with probability (without its sentence in the prompt, with it):
  {behaviours}. Some wordings
  never occur in the transcripts; below they are called *held back*.

## Measured

`python -m arise.tasks.shellworld.measure --episodes {episodes}`: sampled at temperature 1.

{tables}"""


def build(out: Path, *, seed: int, recipe: WarmStart) -> None:
    """Make transcripts, train, and write a Hugging Face folder.

    Args:
        out: Folder to write to.
        seed: Any integer.
        recipe: Sizes and rates of the warm start.
    """
    started = time.monotonic()
    tokenizer = build_tokenizer()
    print(f"tokenizer: {len(tokenizer)} tokens", flush=True)
    transcripts = make_transcripts(recipe.num_transcripts, seed)
    solved = sum(transcript.reward for transcript in transcripts) / len(transcripts)
    print(
        f"transcripts: {len(transcripts)}, {solved:.0%} solved, {time.monotonic() - started:.0f} s",
        flush=True,
    )
    model, progress = train(recipe, transcripts, tokenizer, seed)
    for line in progress:
        print(line, flush=True)
    save(model, tokenizer, out)
    print(f"written to {out} after {time.monotonic() - started:.0f} s")


def save(model: LlamaForCausalLM, tokenizer: object, out: Path) -> None:
    """Write weights in float16, tokenizer and generation settings."""
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)  # type: ignore[attr-defined]
    settings = {
        "do_sample": True,
        "temperature": 1.0,
        "max_new_tokens": MAX_OUTPUT_TOKENS,
        "eos_token_id": model.config.eos_token_id,
        "pad_token_id": model.config.pad_token_id,
    }
    (out / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def write_card(out: Path, *, seed: int, recipe: WarmStart, episodes: int, duration: str) -> None:
    """Measure the policy in `out` and write its model card."""
    model, tokenizer = measure.load_policy(out)
    behaviours = ", ".join(
        f"{name} ({rate:g}, {MIXTURE.prompted[name]:g})"
        for name, rate in MIXTURE.unprompted.items()
    )
    card = _CARD.format(
        parameters=sum(tensor.numel() for tensor in model.parameters()),
        layers=recipe.layers,
        hidden=recipe.hidden,
        vocabulary=len(tokenizer),  # type: ignore[arg-type]
        transcripts=recipe.num_transcripts * recipe.epochs,
        seed=seed,
        duration=duration,
        turns=MAX_TURNS,
        output=MAX_OUTPUT_TOKENS,
        context=CONTEXT_TOKENS,
        behaviours=behaviours,
        episodes=episodes,
        tables="\n".join(measure.report(out, episodes, seed)),
    )
    (out / "MODEL_CARD.md").write_text(card)


def main(arguments: Sequence[str] | None = None) -> None:
    """Build and measure."""
    parser = argparse.ArgumentParser(description="Build the bundled policy from a seed.")
    parser.add_argument("--out", type=Path, default=measure.POLICY, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="any integer")
    parser.add_argument("--transcripts", type=int, help="fewer, for a quick trial")
    parser.add_argument("--episodes", type=int, default=480, help="per measured figure; 0: none")
    options = parser.parse_args(arguments)
    # One thread: the same weights on any number of cores, and no waiting on a busy one.
    torch.set_num_threads(1)
    recipe = WarmStart(
        **({} if options.transcripts is None else {"num_transcripts": options.transcripts})
    )
    started = time.monotonic()
    build(options.out, seed=options.seed, recipe=recipe)
    if options.episodes:
        minutes = (time.monotonic() - started) / 60
        write_card(
            options.out,
            seed=options.seed,
            recipe=recipe,
            episodes=options.episodes,
            duration=f" in {minutes:.0f} minutes on one core",
        )


if __name__ == "__main__":
    main()
