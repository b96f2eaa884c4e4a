/** Errors that belong to the protocol and not to the library, and the codes of both. */

import { AttentionError } from "../src/index.ts";

/** A request that is no request: no JSON, an unknown command, a field or tensor that is missing. */
export class InvalidRequest extends Error {
  override readonly name: string = "InvalidRequest";
  readonly code: string = "invalid_request";
}

/** One of the closed codes; `internal` for whatever was not foreseen. */
export function codeOf(error: unknown): string {
  return error instanceof InvalidRequest || error instanceof AttentionError ? error.code : "internal";
}
