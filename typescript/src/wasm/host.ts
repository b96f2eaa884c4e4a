/** Worker threads as Node and browsers have them, by one small interface and without importing either. */

/** A thread that is sent messages. */
export interface Thread {
  postMessage(message: unknown): void;
  terminate(): unknown;
  /** Node only: the thread keeps no process alive. */
  unref?(): void;
}

interface Receiver {
  on?(event: "message", listener: (data: unknown) => void): void;
  onmessage?: (event: { readonly data: unknown }) => void;
}

interface NodeThreads {
  readonly Worker: new (url: object) => Thread;
  readonly parentPort: Receiver | null;
}

interface Globals extends Receiver {
  readonly process?: { getBuiltinModule?(name: string): unknown };
  readonly URL: new (path: string, base: string) => object;
  readonly Worker?: new (url: object, options: { type: "module" }) => Thread;
}

const globals = globalThis as unknown as Globals;
const node = globals.process?.getBuiltinModule?.("node:worker_threads") as NodeThreads | undefined;

/** Whether threads can share memory here: a browser allows it to isolated pages only. */
export function canShare(): boolean {
  return typeof SharedArrayBuffer !== "undefined" && (node !== undefined || globals.Worker !== undefined);
}

/** A thread that runs `worker` beside this module, as TypeScript or compiled. */
export function startThread(): Thread {
  const { url: here } = import.meta as unknown as { readonly url: string };
  const url = new globals.URL(here.endsWith(".ts") ? "./worker.ts" : "./worker.js", here);
  if (node === undefined) return new globals.Worker!(url, { type: "module" });
  const thread = new node.Worker(url);
  thread.unref?.();
  return thread;
}

/** Inside a thread: what is done with each message. */
export function onMessage(listener: (data: unknown) => void): void {
  if (node?.parentPort) node.parentPort.on!("message", listener);
  else globals.onmessage = ({ data }) => listener(data);
}
