/** What each thread of a pool runs: one engine, and the tasks of every call that it is told of. */

import { type Binary, Engine } from "./engine.ts";
import { onMessage } from "./host.ts";
import { type Job, takeTasks } from "./tasks.ts";

let engine: Engine | null = null;

onMessage((message) => {
  const { job, binary } = message as { job: Job; binary: Binary };
  engine ??= new Engine(binary);
  takeTasks(engine, job);
});
