"""Where a policy's weights and tokenizer come from.

A loader gives a tokenizer, the trainer's model, and an *empty* twin of it for the engine, whose
weights arrive from the trainer before the first request.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from arise.errors import ConfigError


class ModelLoader(Protocol):
    """Makes models and tokenizers."""

    def tokenizer(self) -> Any:
        """The tokenizer, with its chat template."""

    def model(self) -> PreTrainedModel:
        """A model with its initial weights, float32, on the CPU."""

    def empty_model(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """A model of the same architecture whose weights do not matter."""


class PretrainedModel:
    """Any causal language model of transformers, by hub name or folder.

    Args:
        path: Hub name or folder.
        gguf_file: File name of GGUF weights in it.
        chat_template: Jinja file that replaces the tokenizer's chat template.

    Raises:
        ConfigError: The folder or template does not exist, or transformers cannot read it.
    """

    def __init__(
        self, path: str, gguf_file: str | None = None, chat_template: str | None = None
    ) -> None:
        is_folder = path.startswith((".", "/", "~")) or path.count("/") > 1
        resolved = Path(path).expanduser()
        if is_folder and not resolved.is_dir():
            raise ConfigError(f"model.loader.path: folder {path!r} does not exist")
        self._path = str(resolved) if resolved.is_dir() else path
        self._source = {"gguf_file": gguf_file} if gguf_file else {}
        self._chat_template = _read_template(chat_template)

    def tokenizer(self) -> Any:
        """The tokenizer, with the configured chat template if there is one."""
        tokenizer = self._load(AutoTokenizer)
        if self._chat_template is not None:
            tokenizer.chat_template = self._chat_template
        return tokenizer

    def model(self) -> PreTrainedModel:
        """The pretrained weights in float32."""
        return self._load(AutoModelForCausalLM, dtype=torch.float32)

    def empty_model(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """Same architecture, random weights."""
        config = self._load(AutoConfig)
        return AutoModelForCausalLM.from_config(config, dtype=dtype)

    def _load(self, factory: Any, **options: Any) -> Any:
        try:
            return factory.from_pretrained(self._path, **self._source, **options)
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(
                f"model.loader.path: transformers cannot load {self._path!r}: {error}"
            ) from error


class PackagedModel(PretrainedModel):
    """A model folder that an installed package ships.

    Args:
        package: Import name of the package.
        folder: Folder in it.
        chat_template: Jinja file that replaces the tokenizer's chat template.
    """

    def __init__(self, package: str, folder: str, chat_template: str | None = None) -> None:
        path = _package_folder(package) / folder
        super().__init__(str(path.resolve()), chat_template=chat_template)


class PackagedGGUF(PretrainedModel):
    """GGUF weights that an installed package ships.

    Args:
        package: Import name of the package.
        pattern: Glob that matches exactly one file in it.
        folder: Folder in the package; `None` is the package itself.
        chat_template: Jinja file that replaces the tokenizer's chat template.
    """

    def __init__(
        self,
        package: str,
        pattern: str,
        folder: str | None = None,
        chat_template: str | None = None,
    ) -> None:
        path = _package_folder(package) / (folder or "")
        files = sorted(path.glob(pattern))
        if len(files) != 1:
            raise ConfigError(
                f"model.loader.pattern = {pattern!r} matches {len(files)} files of {package}, not 1"
            )
        super().__init__(str(path), gguf_file=files[0].name, chat_template=chat_template)


class RandomModel:
    """A small Llama with random weights and a byte tokenizer, to check a set-up without weights.

    Args:
        seed: Seed of the weights.
        hidden_size: Width.
        num_layers: Depth.
        num_heads: Attention heads.
        intermediate_size: Width of the feed-forward layers.
        context_tokens: Longest sequence.
    """

    _TEMPLATE = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )

    def __init__(
        self,
        seed: int,
        hidden_size: int,
        num_layers: int,
        num_heads: int,
        intermediate_size: int,
        context_tokens: int,
    ) -> None:
        self._seed = seed
        self._sizes: dict[str, Any] = {
            "hidden_size": hidden_size,
            "num_hidden_layers": num_layers,
            "num_attention_heads": num_heads,
            "num_key_value_heads": num_heads,
            "intermediate_size": intermediate_size,
            "max_position_embeddings": context_tokens,
            "tie_word_embeddings": True,
        }

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """One token per byte, plus role and end tokens."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend,
            eos_token="<|end|>",
            additional_special_tokens=[f"<|{r}|>" for r in ("system", "user", "assistant", "tool")],
        )
        tokenizer.chat_template = self._TEMPLATE
        return tokenizer

    def _config(self) -> LlamaConfig:
        tokenizer = self.tokenizer()
        return LlamaConfig(
            vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, **self._sizes
        )

    def model(self) -> PreTrainedModel:
        """Weights drawn from the seed, without touching the global generator."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            return LlamaForCausalLM(self._config()).float()

    def empty_model(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """Same architecture, other weights."""
        with torch.random.fork_rng(devices=[]):
            return AutoModelForCausalLM.from_config(self._config(), dtype=dtype)


def _read_template(path: str | None) -> str | None:
    if path is None:
        return None
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"model.loader.chat_template: file {path!r} does not exist")
    return file.read_text(encoding="utf-8")


def _package_folder(package: str) -> Path:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # the package above it
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"model.loader.package: the package {package!r} is not installed; "
            "for model=smollm2 run: pip install 'arise[smollm2]'"
        )
    return Path(next(iter(spec.submodule_search_locations)))
