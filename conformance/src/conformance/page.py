"""The pages: `site/index.html` and what it links to, drawn from the newest reports. Nothing is run."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from . import cases
from .bench_file import read_bench
from .case import Case, Suite, read_suite
from .decode import read_decode
from .decode_counts import WAYS
from .errors import UsageError
from .fixtures import CACHE, FixtureError, load_suite
from .kv_bytes import read_kv_bytes
from .page_caches import WIDTH as PANEL_WIDTH
from .page_caches import view_bytes, view_decode
from .page_code import group_pages, op_pages
from .page_compare import comparison_pages
from .page_ladder import ladder_pages, prose
from .page_minilm import read_minilm, view_minilm
from .page_onnx import view_onnx
from .page_results import STEP_OF, CaseView, Results, view_results
from .page_scaling import view_scaling
from .page_speed import view_speed
from .report import read_report
from .repository import ROOT
from .steps import STEPS
from .tally import shorten, show_cosine, show_ns, show_ratio, show_share

TEMPLATES = Path(__file__).parent / "site"
SITE = ROOT / "site"
STYLES = ("style.css", "style_speed.css", "style_code.css", "style_caches.css")
DRAWN = ("case", "suite", "op", "compare", "ladder")  # folders that hold nothing but pages
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class Writer:
    """Renders templates into one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._jinja = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._jinja.globals |= {
            "numbers": NUMBERS,
            "show_cosine": show_cosine,
            "show_error": show_error,
            "show_ns": show_ns,
            "show_ratio": show_ratio,
            "show_share": show_share,
        }
        self._jinja.filters |= {"prose": prose, "shorten": shorten}
        self._jinja.tests["web"] = lambda link: link.startswith(("https://", "http://"))

    def clear(self) -> None:
        """Removes the pages of an older report; the reports themselves stay."""
        for name in DRAWN:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def page(self, template: str, path: str, **values: Any) -> None:
        """One page at a path below the folder."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        root = "../" * path.count("/")
        file.write_text(self._jinja.get_template(template).render(root=root, **values), encoding="utf-8")

    def assets(self) -> None:
        """Style, script and icon."""
        self.folder.mkdir(parents=True, exist_ok=True)
        style = "\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in STYLES)
        (self.folder / "style.css").write_text(style, encoding="utf-8")
        for name in ("site.js", "icon.svg"):
            shutil.copyfile(TEMPLATES / name, self.folder / name)


def draw_site(site: Path = SITE) -> Path:
    """Draws the pages of the project's own suites. Raises UsageError."""
    try:
        suites = [load_suite(name).suite for name in cases.SUITES]
        suites += [read_suite(file.parent) for file in sorted(CACHE.glob("*/manifest.json"))]
    except FixtureError as error:
        raise UsageError(str(error)) from error
    return draw(site, suites)


def draw(site: Path, suites: Sequence[Suite]) -> Path:
    """Draws all pages into the folder that holds the reports; the value is the page to open.

    suites: the manifests, which say what the cases of the reports are. A report that was not made yet leaves
    its section empty; one that is broken or cut short raises UsageError before anything is drawn.
    """
    results = view_results(read_report(file), suites) if (file := site / "report.jsonl").exists() else None
    peers = [read_report(file)] if (file := site / "peers.jsonl").exists() else []
    onnx = view_onnx([*([results.report] if results else []), *peers])
    speed = view_speed(read_bench(file), suites) if (file := site / "bench.jsonl").exists() else None
    scaling = view_scaling(read_bench(file)) if (file := site / "scaling.jsonl").exists() else None
    minilm = view_minilm(read_minilm(file)) if (file := site / "minilm.jsonl").exists() else None
    decode = view_decode(read_decode(file)) if (file := site / "decode.jsonl").exists() else None
    kv_bytes = view_bytes(read_kv_bytes(file)) if (file := site / "kv-bytes.jsonl").exists() else None
    pages = op_pages()
    groups = group_pages(pages)
    comparisons = comparison_pages()
    ladders = ladder_pages(speed.bench if speed else None)
    writer = Writer(site)
    writer.clear()
    writer.assets()
    for page in pages:
        writer.page("op.html.j2", f"op/{page.op}.html", page=page, groups=groups, comparisons=comparisons)
    for comparison in comparisons:
        writer.page("compare.html.j2", comparison.path, page=comparison, comparisons=comparisons)
    for ladder in ladders:
        values = {"page": ladder, "ladders": ladders, "bench": speed.bench if speed else None}
        writer.page("ladder.html.j2", ladder.path, **values)
    if results is not None:
        _draw_results(writer, results)
    beside = [f"speed: {shorten(problem)}" for problem in (speed.bench.footer.problems if speed else [])]
    for what, found in (("decode", decode and decode.decoding), ("kv-bytes", kv_bytes and kv_bytes.found)):
        beside += [f"{what}: {shorten(problem)}" for problem in (found.footer.problems if found else [])]
    values = {
        "results": results,
        "speed": speed,
        "scaling": scaling,
        "minilm": minilm,
        "onnx": onnx,
        "decode": decode,
        "kv_bytes": kv_bytes,
        "ways": WAYS,
        "panel_width": PANEL_WIDTH,
        "groups": groups,
        "comparisons": comparisons,
        "ladders": ladders,
        "beside": beside,
    }
    writer.page("index.html.j2", "index.html", **values)
    return site / "index.html"


def _draw_results(writer: Writer, results: Results) -> None:
    """A page for each suite and one for each case."""
    colours = {port.name: port.colour for port in results.ports}
    for suite in results.suites:
        writer.page("suite.html.j2", suite.path, suite=suite, results=results)
        for n, view in enumerate(suite.cases):
            writer.page(
                "case.html.j2",
                view.path,
                view=view,
                suite=suite,
                before=suite.cases[n - 1] if n else None,
                after=suite.cases[n + 1] if n + 1 < len(suite.cases) else None,
                colours=colours,
                steps=STEP_OF.get(view.case.op, {}) if view.case else {},
                has_page=view.case is not None and view.case.op in STEPS,
                config=_show_config(view),
                script=_script(view.case),
            )


def _show_config(view: CaseView) -> str:
    """The config as JSON, a key a line; the steps of a script have a table of their own."""
    config = {key: value for key, value in (view.case.config if view.case else {}).items() if key != "steps"}
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in config.items()]
    return "{\n  " + ",\n  ".join(lines) + "\n}" if lines else "{}"


def _script(case: Case | None) -> list[tuple[str, str, str]]:
    """The steps of a cache case: what is done, with what, and the code that must come."""
    steps = case.config.get("steps", []) if case else []
    if not isinstance(steps, list):
        return []
    codes = (case.steps if case else None) or []
    rows = []
    for n, step in enumerate(steps):
        rest = {key: value for key, value in step.items() if key != "do"} if isinstance(step, dict) else step
        shown = re.sub(r'[{}"]', "", json.dumps(rest, ensure_ascii=False))
        done = str(step.get("do", "")) if isinstance(step, dict) else ""
        rows.append((done, shown, codes[n] if n < len(codes) else "ok"))
    return rows


def show_error(x: float) -> str:
    """An error in two digits or without a fraction; 0 is no error at all."""
    return "0" if x == 0 else f"{x:.0f}" if 10 <= x < 1e5 else f"{x:.2g}"
