/** Attention, multi-head attention and the KV cache in plain TypeScript. */

export {
  AttentionError,
  CapacityExceeded,
  DtypeMismatch,
  type ErrorCode,
  InvalidConfig,
  ShapeMismatch,
  Unsupported,
} from "./errors.ts";
export { KVCache, type KVCacheContents, type KVCacheOptions } from "./kv_cache.ts";
export { type Mask, visible } from "./masks.ts";
export { type MhaSteps, type MhaWeights, MultiHeadAttention } from "./mha.ts";
export { type AttentionOptions, type SdpaOptions, type SdpaSteps, sdpa, sdpaSteps } from "./sdpa.ts";
export { type SoftmaxLse, softmax, softmaxLse } from "./softmax.ts";
export type {
  BoolTensor,
  FloatArray,
  FloatArrays,
  FloatDtype,
  IntTensor,
  Lengths,
  Tensor,
  TensorArray,
} from "./tensor.ts";
