"""Files of caches: what they hold, and what is refused."""

import json

import numpy as np
import pytest
import safetensors.numpy
from caches import KINDS, SIZES, append, snapshot
from safetensors import safe_open

import rosetta_attention as ra
from rosetta_attention.tensor_file import TYPES, read_tensors, write_tensors

ALL = {
    **KINDS,
    "latent": lambda **options: ra.LatentCache(3, 3, 1, **options),
    "cross": lambda **options: ra.CrossCache(*SIZES, **options),
}


def filled(kind, dtype="float32"):
    cache, step = ALL[kind](dtype=dtype), append(np.random.default_rng(0), [4, 0, 2], 4, dtype=dtype)
    if kind == "latent":
        cache.append(step.k[:, 0, :, :3], step.k[:, 0, :, 3:], step.lengths)
    else:
        step.apply(cache)
    return cache


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache.safetensors"


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("kind", ALL)
def test_a_file_is_what_others_read_too(kind, dtype, path):
    cache = filled(kind, dtype)
    ra.save(cache, path)
    with safe_open(path, "np") as file:
        about = file.metadata()
        names = set(file.keys())
        assert file.get_tensor("positions").tolist() == cache.content().positions.tolist()
    assert (about["format"], about["version"], about["kind"]) == ("rosetta-kv-cache", "1", cache.kind)
    assert names == {"lengths", "next", "positions", *cache.content().arrays}
    other = ALL[kind](dtype=dtype)
    ra.load(other, path)
    assert snapshot(other) == snapshot(cache)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# Each type that a file may hold, with a scalar and an array of no elements.
ARRAYS = {name: np.arange(1, 7).astype(dtype).reshape(2, 3) for name, dtype in TYPES.items()}
ARRAYS |= {"scalar": np.array(2.5), "empty": np.zeros((2, 0), np.float32)}


def bits(arrays):
    return {name: (str(x.dtype), x.shape, x.tobytes()) for name, x in arrays.items()}


def test_the_package_safetensors_reads_what_is_written(path):
    write_tensors(path, ARRAYS, {"one": "text"})
    entries = safetensors.deserialize(path.read_bytes())
    got = {name: np.frombuffer(x["data"], TYPES[x["dtype"]]).reshape(x["shape"]) for name, x in entries}
    assert bits(got) == bits(ARRAYS)
    with safe_open(path, "np") as file:
        assert file.metadata() == {"one": "text"}


def test_what_the_package_safetensors_writes_is_read(path):
    safetensors.numpy.save_file(ARRAYS, path, {"one": "text"})
    arrays, metadata = read_tensors(path)
    assert bits(arrays) == bits(ARRAYS)
    assert metadata == {"one": "text"}


def refuse(code, cache, path):
    before = snapshot(cache)
    with pytest.raises(ra.AttentionError) as caught:
        ra.load(cache, path)
    assert caught.value.code == code, caught.value
    assert snapshot(cache) == before


@pytest.mark.parametrize("kind", ["contiguous", "int4", "paged"])
def test_a_file_that_is_cut_or_changed(kind, path):
    cache = filled(kind)
    ra.save(cache, path)
    good = path.read_bytes()
    for size in (*range(0, 40), len(good) // 2, len(good) - 1):
        path.write_bytes(good[:size])
        refuse("invalid_request", cache, path)
    path.write_bytes(good + b"\0")
    refuse("invalid_request", cache, path)
    path.write_bytes((3).to_bytes(8, "little") + b"[1]")
    refuse("invalid_request", cache, path)
    refuse("invalid_request", cache, path.parent / "absent")
    refuse("invalid_request", cache, path.parent)
    with pytest.raises(ra.InvalidFile):
        ra.save(cache, path.parent / "absent" / "file")


CHANGES = {
    "foreign": ({"format": "gguf"}, {}),
    "version": ({"version": "2"}, {}),
    "no kind": ({"kind": None}, {}),
    "no size": ({"head_dim": None}, {}),
    "dtype": ({"dtype": "f8"}, {}),
    "no values": ({}, {"v": None}),
    "more": ({}, {"w": np.zeros(1)}),
    "type": ({}, {"k": np.zeros((3, 2, 4, 4))}),
    "shape": ({}, {"k": np.zeros((3, 2, 4, 5), np.float32)}),
    "rank": ({}, {"positions": np.zeros(3, np.int64)}),
    "long": ({}, {"lengths": np.int64([5, 0, 2])}),
    "negative": ({}, {"lengths": np.int64([4, -1, 2])}),
    "behind": ({}, {"next": np.int64([3, 0, 2])}),
    "below": ({}, {"next": np.int64([4, -1, 2])}),
    "order": ({}, {"positions": np.int64([[0, 2, 1, 3], [-1] * 4, [0, 1, -1, -1]])}),
    "twice": ({}, {"positions": np.int64([[0, 1, 1, 3], [-1] * 4, [0, 1, -1, -1]])}),
    "beyond": ({}, {"positions": np.int64([[0, 1, 2, 3], [-1] * 4, [0, 1, 2, -1]])}),
}


@pytest.mark.parametrize(("about", "arrays"), CHANGES.values(), ids=CHANGES)
def test_a_damaged_file(about, arrays, path):
    cache = filled("contiguous")
    ra.save(cache, path)
    old, metadata = read_tensors(path)
    changed = {name: x for name, x in {**old, **arrays}.items() if x is not None}
    write_tensors(path, changed, {name: x for name, x in {**metadata, **about}.items() if x is not None})
    refuse("invalid_request", cache, path)


@pytest.mark.parametrize("kind", ["paged", "cross", "latent"])
def test_gaps_where_there_can_be_none(kind, path):
    cache = filled(kind)
    ra.save(cache, path)
    arrays, metadata = read_tensors(path)
    write_tensors(path, arrays | {"next": arrays["next"] + 1}, metadata)
    refuse("invalid_request", cache, path)


def test_a_file_of_another_cache(path):
    ra.save(filled("contiguous"), path)
    for cache in (
        ALL["rotating"](),
        ALL["cross"](),
        ra.KVCache(2, *SIZES[1:]),
        ra.KVCache(*SIZES[:3], 5),
        ra.KVCache(*SIZES, rope=ra.Rope()),
    ):
        refuse("invalid_config", cache, path)
    refuse("dtype_mismatch", ra.KVCache(*SIZES, dtype="float64"), path)
    refuse("capacity_exceeded", ra.KVCache(*SIZES, capacity=3), path)
    ra.save(filled("int8"), path)
    for options in (
        {"format": "int4"},
        {"format": "int8", "zero_point": True},
        {"format": "int8", "group": 2},
    ):
        refuse("invalid_config", ra.QuantisedCache(*SIZES, **options), path)


def test_pages_are_taken_anew(path):
    cache = filled("paged")
    ra.save(cache, path)
    for pages, code in ((2, "capacity_exceeded"), (3, None)):
        other = ra.PagedCache(ra.PagePool(pages, 2, *SIZES[1:]), SIZES[0])
        if code:
            refuse(code, other, path)
        else:
            ra.load(other, path)
            ra.load(other, path)  # its own pages are free for it
            assert snapshot(other)[:-2] == snapshot(cache)[:-2]


def test_metadata_are_texts(path):
    ra.save(filled("int4"), path)
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["__metadata__"] == {
        **{"format": "rosetta-kv-cache", "version": "1", "kind": "quantised", "dtype": "f32", "batch": "3"},
        **{"num_kv_heads": "2", "head_dim": "4", "value_dim": "3", "rope": "false"},
        **{"quantised_format": "int4", "zero_point": "true", "group": "3"},
    }
