/** Measures beside the page, which stays alive meanwhile. */

import { measure } from "./measure.ts";
import type { Shape } from "./shape.ts";

addEventListener("message", async ({ data }: MessageEvent<Shape>) => {
  try {
    for await (const measured of measure(data)) postMessage({ measured });
    postMessage({ done: true });
  } catch (error) {
    postMessage({ failed: String(error) });
  }
});
