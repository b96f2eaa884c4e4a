/** A driver for tests: starts the port as the harness does and talks JSON Lines to it. */

import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

export type Answer = Record<string, unknown>;

export class PortClient {
  readonly process: ChildProcessWithoutNullStreams;
  readonly exited: Promise<number | null>;
  readonly #answers: AsyncIterator<string>;

  constructor() {
    this.process = spawn(process.execPath, [fileURLToPath(new URL("../port/port.ts", import.meta.url))]);
    this.exited = new Promise((resolve) => this.process.on("exit", resolve));
    this.#answers = createInterface({ input: this.process.stdout })[Symbol.asyncIterator]();
  }

  /** Sends bytes as they are. */
  send(text: string | Uint8Array): void {
    this.process.stdin.write(text);
  }

  /** The next line of stdout; null when it has ended. */
  async receive(): Promise<Answer | null> {
    const { value, done } = await this.#answers.next();
    return done ? null : (JSON.parse(value) as Answer);
  }

  async ask(request: object): Promise<Answer> {
    this.send(`${JSON.stringify(request)}\n`);
    const answer = await this.receive();
    if (answer === null) throw new Error("the port has ended");
    return answer;
  }

  end(): void {
    this.process.stdin.end();
  }
}

/** A port that has been started. */
export async function startPort(): Promise<PortClient> {
  const port = new PortClient();
  await port.ask({ cmd: "start", protocol: 1, threads: 1 });
  return port;
}
