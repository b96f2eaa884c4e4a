/** The page in browser/, compiled with the library into a folder, and a server that shows it. */

import { spawnSync } from "node:child_process";
import { copyFileSync, readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { extname, join, normalize, sep } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const COMPILER = join(ROOT, "node_modules/typescript/bin/tsc");
const TYPES: Readonly<Record<string, string>> = {
  ".html": "text/html; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
};

/** Writes the page into `folder`: it needs nothing else, and any server of files can show it. */
export function buildPage(folder: string): void {
  const { status, stdout } = spawnSync(
    process.execPath,
    [COMPILER, "-p", join(ROOT, "browser/tsconfig.json"), "--outDir", folder],
    { encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] },
  );
  if (status !== 0) throw new Error(`tsc ended with status ${status}: ${stdout}`);
  for (const name of ["index.html", "style.css"])
    copyFileSync(join(ROOT, "browser", name), join(folder, name));
}

/** What makes a page cross-origin isolated: without it a browser has no memory that threads share. */
const ISOLATED = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
};

/** Serves the files of `folder` to this machine; port 0 is any that is free. The address comes with it. */
export async function servePage(
  folder: string,
  port: number,
  isolated = true,
): Promise<{ server: Server; address: string }> {
  const server = createServer(({ url }, response) => {
    const headers = { "Cache-Control": "no-store", ...(isolated ? ISOLATED : {}) };
    const file = fileOf(folder, url ?? "/");
    const type = TYPES[extname(file)];
    try {
      if (type === undefined) throw new Error();
      const body = readFileSync(file);
      response.writeHead(200, { ...headers, "Content-Type": type }).end(body);
    } catch {
      response.writeHead(404, headers).end("not found");
    }
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, "127.0.0.1", resolve);
  });
  return { server, address: `http://127.0.0.1:${(server.address() as AddressInfo).port}/` };
}

/** The file of `folder` that an address names; what lies outside, or cannot be read as an address, is none. */
function fileOf(folder: string, url: string): string {
  let path: string;
  try {
    path = decodeURIComponent(new URL(url, "http://localhost").pathname);
  } catch {
    return "";
  }
  const file = normalize(join(folder, path.endsWith("/") ? `${path}index.html` : path));
  return file.startsWith(folder + sep) ? file : "";
}
