"""What the documents promise: the example port and the example cases work as they say."""

import json
import re
import sys
from pathlib import Path

import pytest

from conformance import cli, fixtures
from conformance.repository import ROOT

DOCS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def test_the_example_port_passes_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/add-a-port.md").read_text()
    said = re.search(r"\$ \.venv/bin/(conformance run .*--ports-dir .*)\n(\d+ results: .*)\n", page)
    assert said is not None
    monkeypatch.setattr(sys, "argv", [*said[1].split(), "--report", str(tmp_path / "report.jsonl")])
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = capsys.readouterr().out
    assert ended.value.code == 0, out
    assert said[2] in out


def test_the_example_case_of_the_page_is_the_one_in_the_folder() -> None:
    text = (ROOT / "docs/fixtures.md").read_text()
    block = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert block is not None
    assert json.loads(block[1]) == json.loads(
        (ROOT / "docs/example-cases/fully-masked-row.case.json").read_text()
    )
    suite = fixtures.load_folder(ROOT / "docs/example-cases")
    assert [case.id for case in suite.suite.cases] == ["mine/fully-masked-row"]


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def test_every_flag_of_the_traps_page_exists() -> None:
    from conformance.flags import NOTES

    named = re.findall(r"`([A-Z][A-Za-z]+)`", (ROOT / "docs/traps.md").read_text())
    assert len(named) >= 15
    assert set(named) <= set(NOTES)
