"""The pages of a small made-up report: whole, escaped, and loading nothing from elsewhere."""

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from synthetic import NASTY, minilm, suites, write_bench, write_report

from conformance.errors import UsageError
from conformance.outcome import Judgement
from conformance.page import draw
from conformance.page_code import highlight
from conformance.page_minilm import read_minilm, write_minilm
from conformance.page_notes import base_of, note_of
from conformance.page_results import case_paths
from conformance.page_speed import make_axis
from conformance.sidebyside import STEPS

VOID = {"meta", "link", "input", "br", "hr", "img"}


class Page(HTMLParser):
    """What is asked of a page: closed elements, what it links to, what it loads, its ids and its text."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.text = ""
        self.scripts = 0
        self.file = file
        self._open: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))
        self.close()
        assert self._open == [], f"{file}: not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag not in VOID:
            self._open.append(tag)
        if tag == "a":
            self.links.append(values["href"])
        elif tag == "use":
            self.loads.append(values["href"])
        self.loads += [values[name] for name in ("src", "srcset", "data", "poster") if name in values]
        if tag == "link":
            self.loads.append(values["href"])
        self.scripts += tag == "script"
        if "id" in values:
            assert values["id"] not in self.ids, f"{self.file}: id {values['id']} twice"
            self.ids.add(values["id"])
        assert not any(name.startswith("on") for name in values), f"{self.file}: a handler in an attribute"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1:] == [tag], f"{self.file}: </{tag}> closes {self._open[-1:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of a report with everything in it."""
    folder = tmp_path_factory.mktemp("site")
    write_report(folder / "report.jsonl", suites())
    write_bench(folder / "bench.jsonl")
    write_minilm(*minilm(), folder / "minilm.jsonl")
    assert draw(folder, suites()) == folder / "index.html"
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file.resolve(): Page(file) for file in site.rglob("*.html")}


def test_every_link_leads_to_a_page_and_a_place_in_it(pages: dict[Path, Page]) -> None:
    for file, page in pages.items():
        for link in page.links:
            if link.startswith(("https://", "http://")):
                continue
            assert not re.match(r"[a-z]+:", link), f"{file}: {link}"
            path, _, place = link.partition("#")
            target = (file.parent / path).resolve() if path else file
            assert target in pages, f"{file}: {link}"
            assert not place or place in pages[target].ids, f"{file}: {link}"


def test_every_case_is_linked_from_its_suite_and_every_suite_from_the_first_page(
    site: Path, pages: dict[Path, Page]
) -> None:
    linked = set()
    for suite in suites():
        file = (site / f"suite/{suite.suite}.html").resolve()
        assert f"suite/{suite.suite}.html" in pages[(site / "index.html").resolve()].links
        linked |= {(file.parent / link).resolve() for link in pages[file].links if "case/" in link}
        for case in suite.cases:
            assert case.id.removeprefix(f"{suite.suite}/") in pages[file].text
    cases = {file for file in pages if "case" in file.relative_to(site.resolve()).parts}
    assert cases - linked == {(site / "case/protocol/not-json.html").resolve()}
    assert len(cases) == sum(len(suite.cases) for suite in suites()) + 1


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for file, page in pages.items():
        for load in page.loads:
            assert not re.match(r"[a-z]+:|//", load), f"{file}: {load}"
            assert load.startswith("#") or (file.parent / load).exists(), f"{file}: {load}"
    assert not re.search(r"url\(|@import|https?://", (site / "style.css").read_text())
    assert not re.search(r"https?://|import\(|fetch\(", (site / "site.js").read_text())


def test_text_is_escaped_everywhere(pages: dict[Path, Page]) -> None:
    for page in pages.values():
        assert page.scripts == 1
        assert NASTY not in page.file.read_text()
        assert not any(link.startswith("javascript") for link in page.links)
    assert any(NASTY in page.text for page in pages.values())


def test_pages_stay_in_their_folder(site: Path) -> None:
    ids = [case.id for suite in suites() for case in suite.cases]
    for id in [*ids, "../../etc/passwd", "a/./b", "/abs", "", "...", "a\\..\\b"]:
        path = (site / case_paths([id])[id]).resolve()
        assert path.is_relative_to((site / "case").resolve())


def test_ids_that_look_alike_have_pages_of_their_own() -> None:
    ids = ["a/b", "a/B", "a/b ", "a/b!", "a_b"]
    paths = case_paths(ids)
    assert len({path.lower() for path in paths.values()}) == len(ids)


def test_a_failure_names_step_element_and_values(site: Path) -> None:
    text = Page(site / "case/sdpa/gqa/interleave-2.html").text
    for part in (
        "First step that differs",
        "capped[0, 3, 1, 2]",
        "0.4612",
        "0.8113",
        "step 2 in all languages",
    ):
        assert part in text
    assert "most query heads read another head's keys" in text
    assert "../../../op/sdpa.html#step-2" in Page(site / "case/sdpa/gqa/interleave-2.html").links


def test_the_first_page_says_that_something_failed(site: Path, tmp_path: Path) -> None:
    assert "Not all is well" in Page(site / "index.html").text
    write_report(tmp_path / "report.jsonl", suites(), failing=False)
    assert "All is well" in Page(draw(tmp_path, suites())).text


def test_what_stands_in_no_manifest_has_a_note_too(site: Path) -> None:
    assert "a line that is no JSON is answered" in Page(site / "case/protocol/not-json.html").text
    assert note_of("minilm/padding/hello").startswith("the sentence embedded alone")
    assert "order of the keys" in note_of("metamorphic/reversed-keys/gqa/12-4")
    assert base_of("metamorphic/reversed-keys/gqa/12-4") == "sdpa/gqa/12-4"
    assert note_of("metamorphic/new") == note_of("x") == note_of("") == base_of("sdpa/a/b") == ""


def test_a_port_that_fails_at_the_sentences_says_why(tmp_path: Path) -> None:
    header, ports = minilm()
    bad = msgspec.structs.replace(ports[0], padding=[Judgement("fail", "1 - cosine is 2e-03")] * 12)
    write_minilm(header, [bad, *ports[1:]], tmp_path / "minilm.jsonl")
    text = Page(draw(tmp_path, suites())).text
    assert "1 - cosine is 2e-03" in text
    assert "failed" in text


def test_a_script_of_the_cache_shows_what_each_step_must_answer(site: Path) -> None:
    text = Page(site / "case/kv_cache/capacity/one-too-many.html").text
    assert "k: k1, v: v1" in text
    assert "capacity_exceeded" in text


def test_the_speed_table_marks_noise_and_failure(site: Path) -> None:
    text = Page(site / "index.html").text
    assert "fastest: rust simd" in text
    assert "≈" in text
    assert "✗" in text


def test_ops_have_every_step_of_every_language_that_is_there(site: Path) -> None:
    for op, steps in STEPS.items():
        page = Page(site / f"op/{op}.html")
        assert {f"step-{n}" for n in range(1, len(steps) + 1)} <= page.ids
        assert all(name in page.text for name in steps)


def test_comparisons_mark_what_differs_in_every_language(site: Path, pages: dict[Path, Page]) -> None:
    text = (site / "compare/kv_cache-rotating_cache.html").read_text()
    for key in ("python", "rust", "typescript", "julia"):
        assert f"compare-{key}" in text
    assert "line own" in text
    assert "compare/kv_cache-rotating_cache.html" in pages[(site / "index.html").resolve()].links
    assert "../compare/kv_cache-rotating_cache.html" in pages[(site / "op/kv_cache.html").resolve()].links


def test_without_reports_the_sections_say_how_to_make_them(tmp_path: Path) -> None:
    text = Page(draw(tmp_path, [])).text
    assert "make conform" in text
    assert "make bench" in text
    assert "make decode" in text
    assert "conformance kv-bytes" in text


@pytest.mark.parametrize("broken", ["report.jsonl", "bench.jsonl", "minilm.jsonl"])
def test_a_report_that_was_cut_short_is_refused(tmp_path: Path, broken: str) -> None:
    write_report(tmp_path / "report.jsonl", suites())
    write_bench(tmp_path / "bench.jsonl")
    write_minilm(*minilm(), tmp_path / "minilm.jsonl")
    file = tmp_path / broken
    lines = file.read_bytes().splitlines(keepends=True)
    for kept, message in ((lines[:-1], "footer"), (lines[1:], "header"), ([b"{\n", *lines], "line|report")):
        file.write_bytes(b"".join(kept))
        with pytest.raises(UsageError, match=message) as error:
            draw(tmp_path, suites())
        assert broken in str(error.value)
        assert not (tmp_path / "index.html").exists()


def test_a_case_without_a_manifest_is_shown_all_the_same(tmp_path: Path) -> None:
    write_report(tmp_path / "report.jsonl", suites())
    draw(tmp_path, [])
    assert "julia naive f32, naive f64: fail" in Page(tmp_path / "case/sdpa/gqa/interleave-2.html").text


def test_pages_of_an_older_report_go_away(tmp_path: Path) -> None:
    write_report(tmp_path / "report.jsonl", suites(6))
    draw(tmp_path, suites(6))
    assert (tmp_path / "case/sdpa/gqa/interleave-5.html").exists()
    write_report(tmp_path / "report.jsonl", suites(3))
    draw(tmp_path, suites(3))
    assert not (tmp_path / "case/sdpa/gqa/interleave-5.html").exists()
    assert (tmp_path / "report.jsonl").exists()


def test_the_sentences_survive_the_file(tmp_path: Path) -> None:
    header, ports = minilm()
    write_minilm(header, ports, tmp_path / "minilm.jsonl")
    back = read_minilm(tmp_path / "minilm.jsonl")
    assert (back.header, back.ports) == (header, ports)


def test_highlighting_keeps_every_line_and_sets_shapes_off() -> None:
    code = "x = '<b>'  # (B, Hkv, G, Tq, Tk), see (this text)\n\ny = 1  # (B or 1, 1, Tq, 1)"
    lines = highlight(code, "python", first=7)
    assert [line.number for line in lines] == [7, 8, 9]
    assert "&lt;b&gt;" in lines[0].html
    assert "<b># (B, Hkv, G, Tq, Tk)</b>" in lines[0].html
    assert "<b># (B or 1, 1, Tq, 1)</b>" in lines[2].html
    assert "<b>(this" not in lines[0].html
    assert [re.sub("<[^>]+>", "", line.html) for line in lines][1] == ""


def test_a_division_after_a_non_null_mark_is_no_regular_expression() -> None:
    (line,) = highlight("weights[j] = x === 0 ? 0 : weights[j]! / total; // (n,)", "typescript")
    assert line.html.endswith('<span class="c"><b>// (n,)</b></span>')


@pytest.mark.parametrize("lexer", ["python", "rust", "typescript", "julia"])
def test_highlighting_changes_no_character(lexer: str) -> None:
    code = "\n\n  f(x) = 'a' + \"b\" # // (B, T)\n\tend\n\n"
    text = [re.sub("<[^>]+>", "", line.html) for line in highlight(code, lexer)]
    plain = code.replace("'", "&#39;").replace('"', "&#34;")
    assert text == plain.splitlines()


def test_an_axis_holds_everything_and_one() -> None:
    for ratios in ([], [1.0], [0.001, 400.0], [2.0, 3.0]):
        axis = make_axis(ratios)
        assert all(0 <= axis.place(ratio) <= 100 for ratio in [*ratios, 1.0])
        assert any(label == "1×" for _, label in axis.ticks)
