/**
 * Compiles src/wasm/kernels into src/wasm/binary.ts (`npm run build:wasm`): two binaries as base64 text, so that
 * any place that loads the module has them, a browser as well as Node.
 *
 * The file is not committed. Set-up makes it anew whenever a kernel has changed.
 */

import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const COMPILER = join(ROOT, "node_modules/assemblyscript/bin/asc.js");
const OPTIONS = [
  ...["-O3", "--noAssert", "--runtime", "stub", "--use", "abort=", "--enable", "simd"],
  ...["--disableWarning", "112"], // functions with v128 in them are called from each other only
];

function compile(folder: string, name: string, more: readonly string[]): Buffer {
  const file = join(folder, `${name}.wasm`);
  const source = "src/wasm/kernels/index.ts";
  const { status } = spawnSync(process.execPath, [COMPILER, source, ...OPTIONS, ...more, "-o", file], {
    cwd: ROOT,
    stdio: ["ignore", "inherit", "inherit"],
  });
  if (status !== 0) throw new Error(`asc ended with status ${status}`);
  return readFileSync(file);
}

/** Not among the types of Node. */
declare const WebAssembly: {
  readonly Module: new (bytes: Uint8Array) => object;
  readonly Instance: new (module: object) => { readonly exports: object };
};

/** Keys in a block, as the kernels say. */
function blockOf(binary: Buffer): number {
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(new Uint8Array(binary)));
  return (exports as { block(): number }).block();
}

const folder = mkdtempSync(join(tmpdir(), "kernels-"));
try {
  const plain = compile(folder, "plain", []);
  const relaxed = compile(folder, "relaxed", ["--enable", "relaxed-simd"]);
  const text = `// Made by tools/build_wasm.ts from src/wasm/kernels; do not edit.

/** Keys in a block. */
export const BLOCK: number = ${blockOf(plain)};

/** SIMD128: every multiply-add rounds twice. */
export const PLAIN: string =
  "${plain.toString("base64")}";

/** Relaxed SIMD: a multiply-add is one instruction where the machine has it. */
export const RELAXED: string =
  "${relaxed.toString("base64")}";
`;
  writeFileSync(join(ROOT, "src/wasm/binary.ts"), text);
} finally {
  rmSync(folder, { recursive: true });
}
