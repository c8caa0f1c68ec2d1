"""The policy as Hugging Face folders: its tokenizer from the start, all of it at the end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from arise.modules.loading import ModelLoader
from arise.modules.policy import PolicyModule


class ExportCallback(Callback):
    """Writes weights, configuration, tokenizer and chat template after the last iteration.

    The tokenizer is there from the start, so that the tokens of a run can be read while it runs.
    This comes before the last checkpoint: a run whose last checkpoint exists is complete.

    Args:
        folder: The folder to write; transformers and `vllm serve` load it.
        tokenizer_folder: The folder for the tokenizer alone.
        loader: Where the policy came from.
    """

    def __init__(self, *, folder: Path, tokenizer_folder: Path, loader: ModelLoader) -> None:
        self._folder = folder
        self._tokenizer_folder = tokenizer_folder
        self._loader = loader

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the tokenizer, unless an earlier part of this run has."""
        if trainer.is_global_zero and not self._tokenizer_folder.exists():
            hidden = self._tokenizer_folder.with_name(f".writing_{self._tokenizer_folder.name}")
            shutil.rmtree(hidden, ignore_errors=True)
            self._loader.tokenizer().save_pretrained(hidden)
            hidden.rename(self._tokenizer_folder)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Gather the weights on every rank, write them on rank 0."""
        if trainer.global_step != trainer.max_steps:
            return
        assert isinstance(pl_module, PolicyModule)
        assert pl_module.policy is not None
        weights = pl_module.policy.full_weights(is_kept=trainer.is_global_zero)
        if not trainer.is_global_zero:
            return
        model = self._loader.empty_model(torch.float32)
        model.load_state_dict(weights, strict=True)
        hidden = self._folder.with_name(f".writing_{self._folder.name}")
        shutil.rmtree(hidden, ignore_errors=True)
        model.save_pretrained(hidden)
        self._loader.tokenizer().save_pretrained(hidden)
        shutil.rmtree(self._folder, ignore_errors=True)
        hidden.rename(self._folder)
