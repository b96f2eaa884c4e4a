/** A headless Chromium, where there is one, driven over its debugging protocol: a tab, and what is evaluated in it. */

import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";

const NAMES = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/** The program that CHROME names, or one on the PATH; null when there is none. */
export function findChromium(): string | null {
  const { CHROME, PATH } = process.env;
  if (CHROME) return CHROME;
  const folders = (PATH ?? "").split(delimiter);
  return folders.flatMap((folder) => NAMES.map((name) => join(folder, name))).find(existsSync) ?? null;
}

/** An open page. */
export interface Tab {
  /** The value of a JavaScript expression, awaited. @throws Error when it throws. */
  evaluate(expression: string): Promise<unknown>;
  /** What the page complained about so far: exceptions that nobody caught, and errors on its console. */
  readonly complaints: readonly string[];
}

interface Reply {
  readonly id?: number;
  readonly method?: string;
  readonly params?: Record<string, unknown>;
  readonly result?: Record<string, unknown>;
  readonly error?: { readonly message: string };
}

/** Opens `address` in a fresh browser, gives the tab to `use`, and ends the browser whatever happens. */
export async function inChromium(
  program: string,
  address: string,
  use: (tab: Tab) => Promise<void>,
): Promise<void> {
  const profile = mkdtempSync(join(tmpdir(), "chromium-"));
  const options = [
    ...["--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"],
    ...["--disable-component-update", "--remote-debugging-port=0", `--user-data-dir=${profile}`],
    ...(process.getuid?.() === 0 ? ["--no-sandbox"] : []), // which root may not have
  ];
  const browser = spawn(program, [...options, "about:blank"], { stdio: ["ignore", "ignore", "pipe"] });
  const ended = new Promise<void>((resolve) => browser.once("close", () => resolve()));
  try {
    const socket = await connect(browser.stderr);
    await use(await openTab(socket, address));
    socket.close();
  } finally {
    browser.kill("SIGKILL");
    await ended;
    rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** The browser says on stderr where it listens. */
async function connect(stderr: AsyncIterable<Buffer>): Promise<WebSocket> {
  let said = "";
  for await (const chunk of stderr) {
    said += chunk;
    const found = /DevTools listening on (ws:\S+)/.exec(said);
    if (found === null) continue;
    const socket = new WebSocket(found[1]!);
    await new Promise((resolve, reject) => {
      socket.onopen = resolve;
      socket.onerror = reject;
    });
    return socket;
  }
  throw new Error(`the browser did not come up: ${said}`);
}

async function openTab(socket: WebSocket, address: string): Promise<Tab> {
  const waiting = new Map<number, (reply: Reply) => void>();
  const complaints: string[] = [];
  let loaded = (): void => {};
  socket.onmessage = ({ data }) => {
    const { id, method, params, ...rest } = JSON.parse(String(data)) as Reply;
    if (id !== undefined) waiting.get(id)?.({ id, ...rest });
    if (method === "Page.loadEventFired") loaded();
    if (method === "Runtime.exceptionThrown") complaints.push(JSON.stringify(params));
    if (method === "Runtime.consoleAPICalled" && params?.type === "error") {
      complaints.push(JSON.stringify(params));
    }
  };
  socket.onclose = () => {
    for (const answer of waiting.values()) answer({ error: { message: "the browser has ended" } });
  };
  let sent = 0;
  const send = async (method: string, params: object, sessionId?: string) => {
    const id = ++sent;
    socket.send(JSON.stringify({ id, method, params, sessionId }));
    const { result, error } = await new Promise<Reply>((resolve) => waiting.set(id, resolve));
    waiting.delete(id);
    if (error !== undefined) throw new Error(`${method}: ${error.message}`);
    return result!;
  };
  const { targetId } = await send("Target.createTarget", { url: "about:blank" });
  const attached = await send("Target.attachToTarget", { targetId, flatten: true });
  const session = attached.sessionId as string;
  await send("Page.enable", {}, session);
  await send("Runtime.enable", {}, session);
  const load = new Promise<void>((resolve) => {
    loaded = resolve;
  });
  await send("Page.navigate", { url: address }, session);
  await load;
  return {
    complaints,
    async evaluate(expression) {
      const asked = { expression, awaitPromise: true, returnByValue: true };
      const { result, exceptionDetails } = await send("Runtime.evaluate", asked, session);
      if (exceptionDetails !== undefined) throw new Error(JSON.stringify(exceptionDetails));
      return (result as { value?: unknown }).value;
    },
  };
}
