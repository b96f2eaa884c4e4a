"""What the KV caches of some real models are made of: facts from the config.json of each on the Hugging Face hub.

Where a config names no head size, it is the width divided by the query heads.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Model:
    """What decides the size of a cache.

    source: the repository on the hub. context: the positions that its config promises. layers: all of them.
    head_dim, value_dim: of the keys and of the values of each head. window: positions that a windowed layer sees;
    windowed: how many layers are such. latent_dim, rope_dim: what one token leaves in a layer of multi-head latent
    attention, for all heads together; 0 = keys and values are kept.
    """

    name: str
    title: str
    source: str
    context: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None
    windowed: int = 0
    latent_dim: int = 0
    rope_dim: int = 0

    @property
    def kept(self) -> tuple[int, int, int]:
        """What a token leaves in a layer: so many heads, each with vectors of two sizes."""
        if self.latent_dim:
            return 1, self.latent_dim, self.rope_dim
        return self.kv_heads, self.head_dim, self.value_dim

    @property
    def unwindowed(self) -> "Model":
        """The same with every position in every layer."""
        return replace(self, window=None, windowed=0)

    @property
    def full(self) -> "Model":
        """The same with keys and values of every query head, too."""
        return replace(self.unwindowed, kv_heads=self.heads, latent_dim=0, rope_dim=0)


MODELS = (
    Model("gpt2", "GPT-2 (124M)", "openai-community/gpt2", 1024, 12, 12, 12, 64, 64),
    Model("llama-2-7b", "Llama 2 7B", "meta-llama/Llama-2-7b-hf", 4096, 32, 32, 32, 128, 128),
    Model("llama-2-70b", "Llama 2 70B", "meta-llama/Llama-2-70b-hf", 4096, 80, 64, 8, 128, 128),
    Model("llama-3-8b", "Llama 3 8B", "meta-llama/Meta-Llama-3-8B", 8192, 32, 32, 8, 128, 128),
    Model("llama-3-70b", "Llama 3 70B", "meta-llama/Meta-Llama-3-70B", 8192, 80, 64, 8, 128, 128),
    # every layer has the window, and the context is what positions go up to
    Model(
        *("mistral-7b", "Mistral 7B v0.1", "mistralai/Mistral-7B-v0.1", 32768, 32, 32, 8, 128, 128),
        window=4096,
        windowed=32,
    ),
    # its config has a window, and does not use it
    Model("qwen2.5-7b", "Qwen2.5 7B", "Qwen/Qwen2.5-7B", 131072, 28, 28, 4, 128, 128),
    # layers 0, 2, ... have the window
    Model(
        *("gemma-2-9b", "Gemma 2 9B", "google/gemma-2-9b", 8192, 42, 16, 8, 256, 256),
        window=4096,
        windowed=21,
    ),
    # a key is 128 channels from the latent and 64 that are rotated; its next-token module is not counted
    Model(
        *("deepseek-v3", "DeepSeek-V3", "deepseek-ai/DeepSeek-V3", 163840, 61, 128, 128, 192, 128),
        latent_dim=512,
        rope_dim=64,
    ),
    # layers 0, 2, ... have the window
    Model(
        *("gpt-oss-20b", "gpt-oss 20B", "openai/gpt-oss-20b", 131072, 24, 64, 8, 64, 64),
        window=128,
        windowed=12,
    ),
    Model("smollm2-135m", "SmolLM2 135M", "HuggingFaceTB/SmolLM2-135M", 8192, 30, 9, 3, 64, 64),
)
