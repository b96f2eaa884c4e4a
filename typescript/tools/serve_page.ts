/**
 * Shows the page in browser/: `node tools/serve_page.ts [PORT]`, or `make browser`. Everything is compiled into a
 * temporary folder, and served to this machine alone.
 */

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildPage, servePage } from "./page.ts";

const folder = mkdtempSync(join(tmpdir(), "attention-page-"));
process.on("exit", () => rmSync(folder, { recursive: true }));
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(0));
buildPage(folder);
const { address } = await servePage(folder, Number(process.argv[2] ?? 8137));
console.log(`attention in a browser: ${address} (Ctrl+C ends it)`);
