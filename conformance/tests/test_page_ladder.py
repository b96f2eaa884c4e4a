"""The ladder of a language: what a rung says of itself, and what it gained in the same round."""

from pathlib import Path

import pytest
from test_bench_goals import lines_of, report
from test_page import Page

from conformance.bench_file import write_line
from conformance.page import Writer, draw
from conformance.page_ladder import LADDERS, changes, ladder_pages, prose
from conformance.sidebyside import LANGUAGES

PROSE = (
    "The title.\n\nWhat it changes: no [`table`](@ref),\nbut tiles.\n- a {@link point}\n- two\n\n"
    "Letters: B batch.\n\nSource: a paper."
)
SOURCES = {
    "python": f'"""{PROSE}\n"""\n\nimport numpy\n',
    "rust": "".join(f"//! {line}".rstrip() + "\n" for line in PROSE.splitlines())
    + "\nuse ndarray;\n// no header\n",
    "typescript": "/**\n"
    + "".join(f" * {line}".rstrip() + "\n" for line in PROSE.splitlines())
    + " */\n\nimport x;\n",
    "julia": "".join(f"# {line}".rstrip() + "\n" for line in PROSE.splitlines()) + "\n# no header\nx = 1\n",
}


@pytest.mark.parametrize("key", SOURCES)
def test_a_header_says_what_it_changes(key: str) -> None:
    assert changes(SOURCES[key], key) == ["What it changes: no `table`, but tiles.", "- a point", "- two"]
    plain = SOURCES[key].replace("What it changes: no", "No")
    assert changes(plain, key) == ["The title.", "No `table`, but tiles."]
    assert changes("x = 1\n", key) == []


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("no `a<b>` but ``c``", "no <code>a&lt;b&gt;</code> but <code>c</code>"),
        ("a < `b` & c", "a &lt; <code>b</code> &amp; c"),
        ("one ` alone", "one ` alone"),
        ("", ""),
    ],
)
def test_what_stands_in_backticks_is_code(text: str, html: str) -> None:
    assert prose(text) == html


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three rungs of NumPy's, and one of Rust's, which is no ladder."""
    for path in ("sdpa", "blocked", "flash"):
        file = tmp_path / f"python/src/rosetta_attention/{path}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SOURCES["python"].replace("[`table`](@ref)", f"<{path}>"))
    (tmp_path / "rust/attention/src").mkdir(parents=True)
    (tmp_path / "rust/attention/src/sdpa.rs").write_text(SOURCES["rust"])
    return tmp_path


def test_a_gain_is_over_the_rung_before_in_the_same_round(root: Path) -> None:
    times = {
        ("sdpa/prefill-256", "python", "naive"): (8e6, 9e6, 8e6),
        ("sdpa/prefill-256", "python", "blocked"): (2e6, 3e6, 2e6),
        ("sdpa/prefill-256", "python", "flash"): (8e6, 6e6),
        ("sdpa/small", "python", "naive"): (1e6,),
        ("sdpa/small", "python", "blocked"): (1e6,),
    }
    (page,) = ladder_pages(report(times), root)
    naive, blocked, flash = page.steps
    assert page.cases == ["sdpa/small", "sdpa/prefill-256"]
    assert (naive.before, blocked.before, flash.before) == ("", "naive", "blocked")
    assert [gain.before for gain in blocked.gains] == ["≈", "4.00×"]
    assert blocked.mean.before == "2.00×"
    assert [(gain.before, gain.first) for gain in flash.gains] == [("", ""), ("0.38×", "1.25×")]


def test_threads_stand_for_the_most_that_were_timed(root: Path) -> None:
    (root / "rust/attention/src/simd").mkdir()
    (root / "rust/attention/src/simd/threads.rs").write_text(SOURCES["rust"])
    one = {("sdpa/small", "rust", "naive"): (8e6,), ("sdpa/small", "rust", "threads"): (4e6,)}
    pages = ladder_pages(report(one, {("sdpa/small", "rust", "threads"): (2e6,)}), root)
    (rust,) = [page for page in pages if page.key == "rust"]
    assert [gain.before for gain in rust.steps[1].gains] == ["4.00×"]


def test_without_a_benchmark_the_code_is_there_all_the_same(root: Path, tmp_path: Path) -> None:
    (page,) = ladder_pages(None, root)
    assert page.cases == []
    writer = Writer(tmp_path / "site")
    writer.page("ladder.html.j2", page.path, page=page, ladders=[page], bench=None)
    drawn = Page(tmp_path / "site" / page.path)
    assert {"naive", "blocked", "flash"} <= drawn.ids
    assert "<sdpa>" in drawn.text  # escaped
    assert "`" not in drawn.text.partition("Letters:")[0]
    assert "Not timed yet" in drawn.text


def test_every_ladder_is_of_a_language_and_begins_with_its_readable_text() -> None:
    keys = [language.key for language in LANGUAGES]
    assert list(LADDERS) == [key for key in keys if key in LADDERS]
    for key, rungs in LADDERS.items():
        language = next(language for language in LANGUAGES if language.key == key)
        assert rungs[0].files == (language.file("sdpa"),)


def test_what_threads_gain_is_on_the_first_page(tmp_path: Path) -> None:
    one = {("sdpa/small", "python", "naive"): (8e6,), ("sdpa/small", "rust", "threads"): (4e6,)}
    header, lines, footer = lines_of(one, {("sdpa/small", "rust", "threads"): (2.5e6,)})
    with (tmp_path / "bench.jsonl").open("wb") as stream:
        for line in (header, *lines, footer):
            write_line(stream, line)
    text = " ".join(Page(draw(tmp_path, [])).text.split())
    assert "Two threads against 1" in text
    assert "sdpa/small1.60×" in text
