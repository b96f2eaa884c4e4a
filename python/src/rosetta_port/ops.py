"""From a request to a library call."""

from collections.abc import Callable
from typing import Any

from .cache_script import prepare_cache
from .call import Call
from .config import attention_options, integer_or_none
from .errors import InvalidRequest, Unsupported
from .library import Library
from .tensors import Tensors, optional, require

OUTPUTS = {
    "softmax": ("output", "lse"),
    "sdpa": ("output", "weights", "lse", "scores", "capped", "biased"),
    "mha": ("output", "weights", "lse"),
}


def prepare(library: Library, request: dict[str, Any], tensors: Tensors) -> Call:
    """The call that a `run` or `bench` asks for. Raises InvalidRequest, Unsupported, the library's errors."""
    op, config, want = _text(request, "op"), request.get("config"), request.get("want")
    claims = library.ops()
    if op not in claims:
        raise Unsupported(f"op.{op}")
    variants = claims[op]["variants"]
    variant = variants[0] if request.get("variant") is None else _text(request, "variant")
    if variant not in variants:
        raise Unsupported(f"variant.{variant}")
    config = {} if config is None else config
    if not isinstance(config, dict):
        raise InvalidRequest(f"config: expected an object, got {config}")
    if want is not None and (not isinstance(want, list) or not all(isinstance(x, str) for x in want)):
        raise InvalidRequest(f"want: expected a list of names, got {want}")
    if op == "kv_cache":
        return prepare_cache(library, config, tensors, want)
    want = ["output"] if want is None else want
    unknown = sorted(set(want) - set(OUTPUTS[op]))
    if unknown:
        raise InvalidRequest(f"want: expected some of {OUTPUTS[op]}, got {unknown}")
    if op == "softmax":
        return _prepare_softmax(library, tensors, want)
    if op == "sdpa":
        return _prepare_sdpa(library, variant, config, tensors, want)
    return _prepare_mha(library, config, tensors, want)


def _prepare_softmax(library: Library, tensors: Tensors, want: list[str]) -> Call:
    x = library.convert(require(tensors, "x"))
    return _call(
        library,
        want,
        output=lambda: library.api.softmax(x),
        everything=lambda: dict(zip(OUTPUTS["softmax"], library.api.softmax_lse(x), strict=True)),
    )


def _prepare_sdpa(
    library: Library, variant: str, config: dict[str, Any], tensors: Tensors, want: list[str]
) -> Call:
    q, k, v = (library.convert(require(tensors, name)) for name in ("q", "k", "v"))
    options = attention_options(library, config, tensors)
    options["sinks"] = library.convert(optional(tensors, "sinks"))
    if variant != "naive":
        rung = library.sdpa_variants[variant]
        return _prepare_rung(library, lambda: rung(q, k, v, **options), want)
    return _call(
        library,
        want,
        output=lambda: library.api.sdpa(q, k, v, **options),
        everything=lambda: library.api.sdpa_steps(q, k, v, **options)._asdict(),
    )


def _prepare_rung(library: Library, rung: Callable[[], tuple[Any, Any]], want: list[str]) -> Call:
    """A faster rung gives the output and perhaps the lse, never the other steps."""
    for name in want:
        if name not in ("output", "lse"):
            raise Unsupported(f"want.{name}")

    def evaluate() -> dict[str, Any]:
        output, lse = rung()
        if lse is None and "lse" in want:
            raise Unsupported("want.lse")
        return {"output": output, "lse": lse}

    return Call(evaluate, lambda result: {name: library.to_numpy(result[name]) for name in want})


def _prepare_mha(library: Library, config: dict[str, Any], tensors: Tensors, want: list[str]) -> Call:
    num_heads = integer_or_none(config, "num_heads")
    if num_heads is None:
        raise InvalidRequest("config: expected num_heads, got none")
    layer = library.api.MultiHeadAttention(
        **{name: library.convert(require(tensors, name)) for name in ("w_q", "w_k", "w_v", "w_o")},
        num_heads=num_heads,
        num_kv_heads=integer_or_none(config, "num_kv_heads"),
        **{name: library.convert(optional(tensors, name)) for name in ("b_q", "b_k", "b_v", "b_o")},
    )
    x = library.convert(require(tensors, "x"))
    context = library.convert(optional(tensors, "context"))
    options = attention_options(library, config, tensors)
    return _call(
        library,
        want,
        output=lambda: layer(x, context, **options),
        everything=lambda: layer.steps(x, context, **options)._asdict(),
    )


def _call(
    library: Library,
    want: list[str],
    *,
    output: Callable[[], Any],
    everything: Callable[[], dict[str, Any]],
) -> Call:
    """The plain library call where only the output is wanted, else the one that gives its steps by name."""
    if want == ["output"]:
        return Call(output, lambda result: {"output": library.to_numpy(result)})
    return Call(everything, lambda result: {name: library.to_numpy(result[name]) for name in want})


def _text(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{name}: expected a name, got {value}")
    return value
