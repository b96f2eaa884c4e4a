/** The ops of types and positions: cast, sinusoidal, rope, alibi, relative_bias. */

import {
  alibiSteps,
  cast,
  type FloatArray,
  type FloatDtype,
  relativeBiasSteps,
  ropeSteps,
  type SinusoidalOptions,
  sinusoidalSteps,
  Unsupported,
} from "../src/index.ts";
import { SHORT_NAMES } from "../src/tensor.ts";
import { field, optional, plainOffset, required, ropeOptions } from "./config.ts";
import { InvalidRequest } from "./errors.ts";
import { type Op, plainOp } from "./op.ts";

export const POSITIONS: Readonly<Record<string, Op>> = {
  cast: plainOp(["output"], Object.keys(SHORT_NAMES), (config, tensors) => {
    const x = required(tensors, "x");
    const to = field<string>(config, "to");
    if (typeof to === "string" && !Object.hasOwn(SHORT_NAMES, to)) throw new Unsupported(`cast.${to}`);
    const dtype = SHORT_NAMES[to] ?? (to as FloatDtype); // what is no name is the library's to refuse
    return () => ({ output: cast(x, dtype) });
  }),

  sinusoidal: plainOp(
    ["output", "table"],
    ["positions", "offset", "base", "halves", "table"],
    (config, tensors) => {
      const x = required(tensors, "x");
      const { base, halves, offset } = config as SinusoidalOptions;
      const options = { base, halves, offset, positions: optional(tensors, "positions") };
      return () => sinusoidalSteps<FloatArray>(x, options);
    },
  ),

  rope: plainOp(
    ["output", "cos", "sin"],
    [
      ...["positions", "offset", "base", "interleaved", "rotary_dim", "tables"],
      ...["linear", "dynamic", "yarn", "llama3", "longrope", "cos", "sin"],
    ],
    (config, tensors) => {
      const x = required(tensors, "x");
      if (tensors.has("cos") !== tensors.has("sin")) {
        throw new InvalidRequest("inputs: expected cos and sin together, got one of them");
      }
      const options = {
        ...ropeOptions(config),
        positions: optional(tensors, "positions"),
        cos: optional(tensors, "cos"),
        sin: optional(tensors, "sin"),
      };
      return () => ropeSteps<FloatArray>(x, options);
    },
  ),

  alibi: plainOp(["output", "slopes", "bias"], ["q_offset", "slopes", "bias"], (config, tensors) => {
    const scores = required(tensors, "scores");
    const qOffset = plainOffset(config) ?? 0;
    return () => alibiSteps<FloatArray>(scores, qOffset);
  }),

  relative_bias: plainOp(
    ["output", "buckets"],
    ["q_offset", "unidirectional", "max_distance", "buckets"],
    (config, tensors) => {
      const [scores, table] = [required(tensors, "scores"), required(tensors, "table")];
      const options = {
        qOffset: plainOffset(config),
        bidirectional: config.bidirectional as boolean | null,
        maxDistance: config.max_distance as number | null,
      };
      return () => relativeBiasSteps<FloatArray>(scores, table, options);
    },
  ),
};
