/**
 * The closed set of errors. Every port raises the same code for the same bad call (docs/protocol.md).
 *
 * A message names the function, the argument, what was expected and what came. A call that throws has changed
 * nothing.
 */

/** The stable names that every language shares. */
export type ErrorCode =
  | "shape_mismatch"
  | "dtype_mismatch"
  | "invalid_config"
  | "capacity_exceeded"
  | "unsupported"
  | "invalid_request"
  | "internal";

/** Base of all errors of this package. */
export class AttentionError extends Error {
  override readonly name: string = "AttentionError";
  readonly code: ErrorCode = "internal";
}

/** Sizes or ranks that do not fit together. */
export class ShapeMismatch extends AttentionError {
  override readonly name: string = "ShapeMismatch";
  override readonly code: ErrorCode = "shape_mismatch";
}

/** A tensor of the wrong element type. */
export class DtypeMismatch extends AttentionError {
  override readonly name: string = "DtypeMismatch";
  override readonly code: ErrorCode = "dtype_mismatch";
}

/** A scalar option outside its range, or two options that exclude each other. */
export class InvalidConfig extends AttentionError {
  override readonly name: string = "InvalidConfig";
  override readonly code: ErrorCode = "invalid_config";
}

/** A cache without room for what it was given. */
export class CapacityExceeded extends AttentionError {
  override readonly name: string = "CapacityExceeded";
  override readonly code: ErrorCode = "capacity_exceeded";
}

/** A file that is damaged, or not what it should be. */
export class InvalidFile extends AttentionError {
  override readonly name: string = "InvalidFile";
  override readonly code: ErrorCode = "invalid_request";
}

/** A legal request that this implementation does not offer. */
export class Unsupported extends AttentionError {
  override readonly name: string = "Unsupported";
  override readonly code: ErrorCode = "unsupported";
  readonly feature: string;

  constructor(feature: string) {
    super(`${feature} is not offered here`);
    this.feature = feature;
  }
}
