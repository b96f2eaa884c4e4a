"""The cutter on small wrong texts: each kind of wrongness is caught, with its line."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from conformance.errors import UsageError
from conformance.sidebyside import LANGUAGES, check, choose_languages, choose_ops, columns, cut
from conformance.sidebyside_compare import COMPARED, align, compare_modules
from conformance.sidebyside_text import main
from conformance.steps import GROUPS, STEPS

NAMES = ("first", "second step", "third")

RIGHT = """\
def f(x):
    '''A text about 1. nothing'''
    # 1. first: the free text, 1.5 of it
    a = x  # (B, T)
    # a comment that goes on

    if a:
        # 2. second step: deeper
        b = a

        c = b
    # 3. third: the last
    return c


def g():
    pass
"""


def said(source: str, marker: str = "#") -> list[str]:
    return [str(problem) for problem in sorted(cut(source, "f.py", marker, NAMES)[1])]


def test_a_right_text_is_cut_into_its_steps() -> None:
    excerpts, problems = cut(RIGHT, "f.py", "#", NAMES)
    assert problems == []
    assert [e.name for e in excerpts.values()] == list(NAMES)
    assert excerpts[1].text == "the free text, 1.5 of it"
    assert excerpts[1].line == 3
    assert excerpts[1].code == "a = x  # (B, T)\n# a comment that goes on\n\nif a:"
    assert excerpts[2].code == "b = a\n\nc = b"
    assert excerpts[3].code == "return c"


def test_a_step_ends_where_the_indentation_falls() -> None:
    source = "fn f() {\n    // 1. first: x\n    let a = [\n        1,\n    ];\n}\n\nfn g() {}\n"
    excerpts, _ = cut(source, "f.rs", "//", ("first",))
    assert excerpts[1].code == "let a = [\n    1,\n];"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("# 1. first:", "# 1. frist:", "f.py:3: step 1 is named 'frist'; it must be 'first'"),
        ("# 2. second step:", "# 3. second step:", "f.py:8: step 'second step' has number 3; it must be 2"),
        (
            "# 3. third:",
            "# 4. thirds:",
            "f.py:12: no step 4 (thirds): the steps go from 1 to 3; 'third' is step 3",
        ),
        (
            "# 3. third:",
            "# 2. second step:",
            "f.py:12: step 2 (second step) is there twice; the first is on line 8",
        ),
        ("# 1. first: the free text, 1.5 of it", "# 1 first: x", "f.py:8: step 1 (first) is missing"),
        (
            "# 1. first:",
            "# 1) first:",
            "f.py:3: not of the form `# N. name: text`: # 1) first: the free text",
        ),
        ("# 1. first:", "#1. first:", "f.py:3: not of the form `# N. name: text`: #1. first: the free text"),
        ("# 3. third: the last", "# 3. third", "f.py:12: not of the form `# N. name: text`: # 3. third"),
        ("# 1. first:", "# step 1: first:", "f.py:3: not of the form `# N. name: text`: # step 1: first"),
        ("# 1. first:", "# Step 1. first:", "f.py:3: not of the form `# N. name: text`: # Step 1. first"),
        (
            "        b = a\n\n        c = b\n",
            "",
            "f.py:8: step 2 (second step) is empty: no code before the next step",
        ),
        ("        b = a\n\n        c = b\n", "        # later\n", "f.py:8: step 2 (second step) is empty"),
        (
            "        b = a\n",
            "        b = a  # 3. third: here\n",
            "f.py:9: step 3 (third) must stand on a line of its own",
        ),
    ],
)
def test_each_kind_of_wrongness_is_named_with_its_line(old: str, new: str, expected: str) -> None:
    assert old in RIGHT
    problems = said(RIGHT.replace(old, new))
    assert any(problem.startswith(expected) for problem in problems), problems


def test_a_missing_step_points_at_the_step_after_it() -> None:
    source = RIGHT.replace("        # 2. second step: deeper\n", "")
    assert said(source) == ["f.py:11: step 2 (second step) is missing"]


def test_a_missing_last_step_points_at_the_end() -> None:
    source = RIGHT.replace("    # 3. third: the last\n", "")
    assert said(source) == [f"f.py:{len(source.splitlines())}: step 3 (third) is missing"]


def test_steps_out_of_order_are_named() -> None:
    source = "# 2. second step: x\na = 1\n# 1. first: x\nb = 1\n# 3. third: x\nc = 1\n"
    assert said(source) == ["f.py:3: step 1 (first) is out of order: it comes after step 2"]


def test_a_file_without_a_step_misses_all() -> None:
    assert len(said("x = 1\n")) == len(NAMES)
    assert len(said("")) == len(NAMES)


def test_doc_comments_and_numbers_are_no_steps() -> None:
    source = "/// 1. a list in a doc comment\n//! 2. another\n// 1. first: x\nlet a = 1; // 2.5 times\n// 0: the rest\n"
    assert said(source, "//") == [
        "f.py:5: step 2 (second step) is missing",
        "f.py:5: step 3 (third) is missing",
    ]


def test_a_missing_file_is_one_problem(tmp_path: Path) -> None:
    problems = check(["sdpa"], choose_languages("julia"), tmp_path)
    assert [str(p) for p in problems] == [
        "julia/src/sdpa.jl:1: the file is missing, and with it all 7 steps of sdpa"
    ]


def write_all(root: Path, ops: list[str]) -> None:
    """A tiny right text of each op in each language."""
    for op in ops:
        for language in LANGUAGES:
            file = root / language.file(op)
            file.parent.mkdir(parents=True, exist_ok=True)
            steps = [f"{language.marker} {n}. {name}: {op}\nx = {n}\n" for n, name in enumerate(STEPS[op], 1)]
            file.write_text("\n".join(steps))


def test_the_check_passes_on_right_files_and_fails_on_one_wrong_line(tmp_path: Path) -> None:
    write_all(tmp_path, list(STEPS))
    console = Console(file=io.StringIO(), width=100)
    assert main(check_only=True, root=tmp_path, console=console) == 0
    file = tmp_path / "rust/attention/src/mha.rs"
    file.write_text(file.read_text().replace("// 2. split heads", "// 2. split head"))
    out = io.StringIO()
    assert main(check_only=True, root=tmp_path, console=Console(file=out, width=100)) == 1
    assert (
        "rust/attention/src/mha.rs:4: step 2 is named 'split head'; it must be 'split heads'"
        in out.getvalue()
    )


@pytest.mark.parametrize("width", [40, 100, 400])
def test_the_terminal_shows_every_step_of_every_language(tmp_path: Path, width: int) -> None:
    write_all(tmp_path, ["kv_cache"])
    out = io.StringIO()
    console = Console(file=out, width=width)
    assert main("kv_cache", "rust,julia", root=tmp_path, console=console) == 0
    text = out.getvalue()
    assert text.count("x = 9") == 2
    assert "TypeScript" not in text
    assert all(len(line) <= width for line in text.splitlines())


def test_unknown_names_are_said_with_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"no language is called 'cobol'; known: python, torch"):
        choose_languages("cobol")
    with pytest.raises(UsageError, match="did you mean 'softmax'"):
        choose_ops("sdpa,sofmax")


def test_every_language_has_every_step() -> None:
    assert [str(problem) for problem in check()] == []
    assert all(column.source and len(column.excerpts) == len(STEPS["sdpa"]) for column in columns("sdpa"))


def test_every_module_is_in_one_group() -> None:
    assert sorted(op for ops in GROUPS.values() for op in ops) == sorted(STEPS)


def test_steps_of_two_modules_are_aligned_by_name() -> None:
    assert align(("a", "x", "b"), ("a", "y", "z", "b", "c")) == [
        ("a", "a"), ("x", "y"), (None, "z"), ("b", "b"), (None, "c"),
    ]  # fmt: skip


def write_two(root: Path) -> None:
    """kv_cache and rotating_cache in Python, with the same text but where the names say so."""
    folder = root / "python/src/rosetta_attention"
    folder.mkdir(parents=True)
    for op in ("kv_cache", "rotating_cache"):
        lines = []
        for number, name in enumerate(STEPS[op], 1):
            lines += [f"# {number}. {name}: of {op}", f"{name} = 1  # a remark in {op}"]
        lines += ["only_here = 2"] if op == "rotating_cache" else []
        (folder / f"{op}.py").write_text("\n".join(lines) + "\n")


def test_lines_that_differ_are_found_and_remarks_do_not_count(tmp_path: Path) -> None:
    write_two(tmp_path)
    (found,) = compare_modules("kv_cache", "rotating_cache", root=tmp_path)
    differing = [pair for pair in found.pairs if not pair.same]
    assert [pair.name for pair in differing] == ["grow | forget", "read"]
    assert differing[1].right is not None
    assert differing[1].right.own == (False, True)
    assert differing[1].left is not None
    assert differing[1].left.own == (False,)


def test_a_comparison_in_the_terminal(tmp_path: Path) -> None:
    write_two(tmp_path)
    said = io.StringIO()
    console = Console(file=said, width=120)
    assert main(compare="kv_cache,rotating_cache", root=tmp_path, console=console) == 0
    text = said.getvalue()
    assert "▌ only_here = 2" in text
    assert "check  the same in both" in text
    assert main(compare="mla,mla_absorbed", root=tmp_path, console=console) == 1


@pytest.mark.parametrize("names", ["kv_cache", "kv_cache,kv_cache", "a,b,c", "kv_cache,rotating_cash"])
def test_two_modules_must_be_named(names: str) -> None:
    with pytest.raises(UsageError, match=r"expected two ops|no op with numbered steps is called"):
        main(compare=names)


def test_the_registered_comparisons_are_of_modules_that_every_language_has() -> None:
    for left, right in COMPARED:
        keys = [found.language.key for found in compare_modules(left, right)]
        assert keys == ["python", "rust", "typescript", "julia"], (left, right)
