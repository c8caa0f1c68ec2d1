"""Peak memory and time of log-probabilities with gradients: full logits against chunks.

Forward and backward, gradients of hidden states and head included. Each run has a process of its
own, so that one's peak cannot hide the other's; the two ways take turns, and the first pair warms
up and does not count. Prints bytes above what the inputs take, seconds, and the medians of the
ratio plain / chunked (above 1: chunks need less). The chunked way computes entropies too.

The goal, for 8,192 tokens and a vocabulary of 151,936: at most 1/16 of the memory, no more time.
Run it alone; the plain way needs 16 GB.

    python benchmarks/logprob_memory.py --tokens 8192 --vocab 151936 --hidden 512
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import statistics
import sys
import time
from multiprocessing.connection import Connection

import torch

from arise.algorithms.logprobs import token_logprobs


def peak_bytes(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure(way: str, args: argparse.Namespace, answer: Connection) -> None:
    torch.set_num_threads(args.threads)
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int, scale: float = 1.0) -> torch.Tensor:
        # In place: a copy that is gone again would raise the peak before anything is measured.
        values = torch.randn(*shape, generator=generator).mul_(scale)
        return values.to(args.device, dtype).requires_grad_()

    hidden = leaf(args.tokens, args.hidden)
    # Logits of deviation 1, as a model has them. Much wider ones give denormal probabilities, and
    # then their arithmetic is what is timed.
    weight = leaf(args.vocab, args.hidden, scale=args.hidden**-0.5)
    targets = torch.randint(args.vocab, (args.tokens,), generator=generator).to(args.device)
    warm_up = hidden.detach()[:8] @ weight.detach().t()
    assert warm_up.isfinite().all()
    before, start = peak_bytes(args.device), time.perf_counter()
    if way == "plain":
        # In one expression, so that no name keeps a [T, V] tensor that autograd does not need.
        logprobs = (
            (torch.nn.functional.linear(hidden, weight).float() / args.temperature)
            .log_softmax(-1)
            .gather(1, targets[:, None])
            .squeeze(1)
        )
    else:
        logprobs, _ = token_logprobs(
            hidden, weight, targets, temperature=args.temperature, chunk_tokens=args.chunk
        )
    logprobs.sum().backward()
    if args.device == "cuda":
        torch.cuda.synchronize()
    total = logprobs.sum().item()
    answer.send((peak_bytes(args.device) - before, time.perf_counter() - start, total))


def run(way: str, args: argparse.Namespace) -> tuple[int, float, float]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(way, args, sender))
    process.start()
    sender.close()
    try:
        result: tuple[int, float, float] = receiver.recv()
    except EOFError:
        process.join()
        raise SystemExit(f"{way} died with exit code {process.exitcode} (out of memory?)") from None
    process.join()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=32_768)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    memory_ratios, time_ratios = [], []
    for repeat in range(-1, args.repeats):
        order = ("plain", "chunked") if repeat % 2 == 0 else ("chunked", "plain")
        results = {way: run(way, args) for way in order}
        for way, (memory, elapsed, total) in results.items():
            note = " (warm-up)" if repeat < 0 else ""
            print(f"{way:>8}: {memory / 2**20:,.0f} MiB, {elapsed:.2f} s, sum {total:.2f}{note}")
        if repeat >= 0:
            plain, chunked = results["plain"], results["chunked"]
            memory_ratios.append(plain[0] / chunked[0])
            time_ratios.append(plain[1] / chunked[1])
    print(f"ratio plain / chunked memory: {statistics.median(memory_ratios):.1f}")
    print(
        f"ratio plain / chunked time: {statistics.median(time_ratios):.2f} "
        f"({min(time_ratios):.2f} to {max(time_ratios):.2f})"
    )


if __name__ == "__main__":
    main()
