/** The page in browser/: what it computes, what it loads, and the whole of it in a Chromium where there is one. */

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { measure } from "../browser/measure.ts";
import { fault, operationsOf, PRESETS, readShape, type Shape, toHash } from "../browser/shape.ts";
import { buildPage, servePage } from "../tools/page.ts";
import { findChromium, inChromium } from "./chromium.ts";

const folder = mkdtempSync(join(tmpdir(), "attention-page-"));
after(() => rmSync(folder, { recursive: true }));
buildPage(folder);

const SHAPE: Shape = { heads: 4, kvHeads: 2, queries: 40, keys: 70, headDim: 20, causal: true, threads: 3 };

/** Every file that `name` loads, itself included; an import that is no relative path fails. */
function loadedBy(name: string): string[] {
  const seen = new Set<string>();
  const visit = (url: URL): void => {
    if (seen.has(url.href)) return;
    seen.add(url.href);
    const text = readFileSync(url, "utf8").replace(/\/\/# sourceMappingURL=.*/, "");
    for (const [, name] of text.matchAll(/\b(?:from |import\(|import |new URL\()"([^"\n]+)"/g)) {
      assert.match(name!, /^\.\.?\/[^:]*\.js$/, `${url.pathname} loads ${name}`);
      visit(new URL(name!, url));
    }
  };
  visit(new URL(name, `file://${folder}/`));
  return [...seen];
}

test("nothing that the page loads is of Node's, and all of it is there", () => {
  assert.ok(loadedBy("browser/page.js").length > 60);
  assert.ok(loadedBy("browser/page.js").some((url) => url.endsWith("/browser/worker.js")));
  assert.ok(loadedBy("src/wasm/worker.js").length > 5); // what each thread loads, by an address made at run time
  const html = readFileSync(join(folder, "index.html"), "utf8");
  for (const [, name] of html.matchAll(/(?:src|href)="([^"]+)"/g)) {
    if (!name!.startsWith("data:")) readFileSync(join(folder, name!));
  }
});

test("a shape goes through the address and comes back; a bad one is told in words", () => {
  const other = { ...SHAPE, heads: 1, causal: false };
  assert.deepEqual(readShape(new URLSearchParams(toHash(SHAPE)), other), SHAPE);
  assert.deepEqual(readShape(new URLSearchParams(""), SHAPE), SHAPE);
  for (const preset of Object.values(PRESETS)) assert.equal(fault({ ...preset, threads: 2 }), null);
  assert.match(fault({ ...SHAPE, kvHeads: 3 })!, /4 query heads cannot share 3/);
  assert.match(fault({ ...SHAPE, keys: 0 })!, /^keys: a whole number from 1 to 32768/);
  assert.match(fault({ ...SHAPE, headDim: Number.NaN })!, /^head size/);
  assert.match(fault({ ...SHAPE, heads: 64, queries: 8192, keys: 8192, kvHeads: 1 })!, /billion operations/);
  // Causal: of the last two of 40 queries on 70 keys one sees 69, the other 70.
  assert.equal(operationsOf(SHAPE, 2), 4 * 4 * (69 + 70) * 20);
  assert.equal(operationsOf({ ...SHAPE, causal: false }, 2), 4 * 4 * 140 * 20);
});

test("every rung agrees with float64 where it may, also with rows that see nothing", async () => {
  for (const shape of [SHAPE, { ...SHAPE, keys: 20 }]) {
    const rungs: string[] = [];
    for await (const { rung, error, milliseconds } of measure(shape, 20)) {
      rungs.push(rung);
      assert.ok(error > 0 && error <= 1, `${rung}: ${error}`);
      assert.ok(Number.isFinite(milliseconds));
    }
    assert.deepEqual(rungs, ["naive", "flash", "blocked", "wasm, SIMD128", "wasm, relaxed SIMD"]);
  }
});

test("a server that gives the page's files and no others", async () => {
  const { server, address } = await servePage(folder, 0);
  after(() => server.close());
  const page = await fetch(address);
  assert.equal(page.status, 200);
  assert.equal(page.headers.get("cross-origin-opener-policy"), "same-origin");
  assert.equal(page.headers.get("cross-origin-embedder-policy"), "require-corp");
  assert.match(await page.text(), /^<!doctype html>/);
  for (const path of ["none.js", "..%2f..%2fetc/passwd", "%", "browser/"]) {
    assert.equal((await fetch(address + path)).status, 404, path);
  }
});

const chromium = findChromium();

test("a browser shows right results, with threads where it may share memory", {
  skip: chromium === null && "no Chromium: neither CHROME nor one on the PATH",
  timeout: 600_000, // a page that hangs would be waited for
}, async () => {
  for (const isolated of [true, false]) {
    const { server, address } = await servePage(folder, 0, isolated);
    try {
      await inChromium(chromium!, `${address}#${toHash(SHAPE)}`, (tab) => judge(tab, isolated));
    } finally {
      server.close();
      server.closeAllConnections();
    }
  }
});

type Judged = Parameters<Parameters<typeof inChromium>[2]>[0];

async function judge(tab: Judged, isolated: boolean): Promise<void> {
  const state = await tab.evaluate(`new Promise((resolve) => {
    const look = () => {
      const status = document.getElementById("status");
      if (document.body.dataset.state || status.classList.contains("bad")) resolve(document.body.dataset.state ?? status.textContent);
      else setTimeout(look, 20);
    };
    look();
  })`);
  assert.equal(state, "right", tab.complaints.join("\n"));
  const rungs = await tab.evaluate(`[...document.querySelectorAll("#rows th")].map((x) => x.textContent)`);
  const wasm = ["naive", "flash", "blocked", "wasm, SIMD128", "wasm, relaxed SIMD"];
  assert.deepEqual(rungs, isolated ? [...wasm, "3 threads"] : wasm);
  assert.equal(await tab.evaluate("crossOriginIsolated"), isolated);

  // The library on the page's own thread, which may not sleep; a worker comes up once the page has waited.
  const alike = await tab.evaluate(`(async () => {
    const { Threads, wasm } = await import("./src/index.js");
    const data = Float32Array.from({ length: 2 * 300 * 32 }, (_, n) => Math.sin(n * n));
    const x = { data, shape: [1, 2, 300, 32] };
    const want = wasm(x, x, x, { mask: { causal: true } });
    if (!crossOriginIsolated) {
      try { new Threads(2); } catch (error) { return error.code; }
    }
    const threads = new Threads(3);
    let got;
    for (let n = 0; n < 1000 && threads.helped === 0; n++) {
      got = threads.sdpa(x, x, x, { mask: { causal: true } });
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    const helped = threads.helped > 0;
    threads.close();
    const same = (a, b) => a.data.length > 0 && a.data.every((number, n) => number === b.data[n]);
    return [helped, same(got.output, want.output), same(got.lse, want.lse)].join();
  })()`);
  assert.equal(alike, isolated ? "true,true,true" : "unsupported");
  assert.deepEqual(tab.complaints, []);
}
