/** Attention and its family in plain TypeScript: the parts, the layers around them, and KV caches. */

export { type AlibiSteps, alibi, alibiSlopes, alibiSteps } from "./alibi.ts";
export { Bfloat16Array, fromBfloat16, toBfloat16 } from "./bfloat16.ts";
export { type Block, type BlockOptions, block, type Norm } from "./block.ts";
export { blocked } from "./blocked.ts";
export {
  type AppendOptions,
  allOrNothing,
  type Cache,
  type CacheState,
  type CacheStats,
  type Description,
} from "./cache.ts";
export { dtypeOfFile, loadCache, saveCache } from "./cache_file.ts";
export type { CacheRope, RopeAt } from "./cache_rope.ts";
export { cacheWrite } from "./cache_write.ts";
export { cast, narrow, widen } from "./cast.ts";
export { CrossCache } from "./cross_cache.ts";
export { type Dropout, type DropoutSteps, dropout, dropoutSteps } from "./dropout.ts";
export {
  AttentionError,
  CapacityExceeded,
  DtypeMismatch,
  type ErrorCode,
  InvalidConfig,
  InvalidFile,
  ShapeMismatch,
  Unsupported,
} from "./errors.ts";
export type { HeavyHitters, KeyNorm, Policy, SnapKV, Window } from "./eviction.ts";
export { type Activation, type FeedForward, feedForward } from "./feed_forward.ts";
export { type FlashOptions, flash } from "./flash.ts";
export {
  type GatedLinearOptions,
  type GatedLinearSteps,
  type GatedRule,
  gatedLinear,
} from "./gated_linear.ts";
export { type GeluForm, gelu } from "./gelu.ts";
export type { Held } from "./held.ts";
export { KiviCache, type KiviCacheOptions, type KiviContents } from "./kivi_cache.ts";
export { KVCache, type KVCacheOptions } from "./kv_cache.ts";
export { LatentCache, type LatentCacheOptions, type LatentContents } from "./latent_cache.ts";
export { type LayerNormSteps, layerNorm, layerNormSteps } from "./layer_norm.ts";
export {
  type LinearAttentionOptions,
  type LinearAttentionSteps,
  type LinearState,
  linearAttention,
} from "./linear_attention.ts";
export { type LinearChunkedOptions, linearChunked } from "./linear_chunked.ts";
export { linearRecurrent } from "./linear_recurrent.ts";
export { type Mask, visible } from "./masks.ts";
export { type Attended, merge } from "./merge.ts";
export {
  type MhaOptions,
  type MhaSettings,
  type MhaSteps,
  type MhaWeights,
  MultiHeadAttention,
} from "./mha.ts";
export { type MlaOptions, type MlaSteps, type MultiHeadLatentAttention, mla, mlaSteps } from "./mla.ts";
export { mlaAbsorbed } from "./mla_absorbed.ts";
export type { PackedWeights, Packing } from "./packed.ts";
export { type Page, type PagedRow, PagePool, type PagePoolOptions } from "./page_pool.ts";
export { PagedCache, type PagedCacheOptions } from "./paged_cache.ts";
export type { KVCacheContents, KVCacheSizes } from "./pairs.ts";
export { PerHeadCache } from "./per_head_cache.ts";
export { philoxWords } from "./philox.ts";
export { type Codes, type QuantFormat, type QuantiseOptions, quantise, restore } from "./quantise.ts";
export {
  QuantisedCache,
  type QuantisedCacheOptions,
  type QuantisedContents,
} from "./quantised_cache.ts";
export {
  type RelativeBiasOptions,
  type RelativeBiasSteps,
  relativeBias,
  relativeBiasSteps,
} from "./relative_bias.ts";
export { rmsNorm } from "./rms_norm.ts";
export { type Rope, type RopeOptions, type RopeSteps, rope, ropeSteps } from "./rope.ts";
export type {
  DynamicScaling,
  LinearScaling,
  Llama3Scaling,
  LongRopeScaling,
  RopeScaling,
  YarnScaling,
} from "./rope_scaling.ts";
export { RotatingCache, type RotatingCacheOptions } from "./rotating_cache.ts";
export {
  type ScoringForm,
  type ScoringOptions,
  type ScoringSteps,
  scoring,
  scoringSteps,
} from "./scoring.ts";
export { type AttentionOptions, type SdpaOptions, type SdpaSteps, sdpa, sdpaSteps } from "./sdpa.ts";
export { type SinusoidalOptions, type SinusoidalSteps, sinusoidal, sinusoidalSteps } from "./sinusoidal.ts";
export { type SoftmaxLse, softmax, softmaxLse } from "./softmax.ts";
export { type SparseOptions, type SparseSteps, sparse, sparseMask, sparseSteps } from "./sparse.ts";
export type { SparsePattern } from "./sparse_patterns.ts";
export { type SplitOptions, splitKv } from "./split_kv.ts";
export { type StructuredSteps, structured, structuredSteps } from "./structured.ts";
export { swiglu } from "./swiglu.ts";
export type {
  BoolTensor,
  FloatArray,
  FloatArrays,
  FloatDtype,
  IntTensor,
  Lengths,
  Tensor,
  TensorArray,
  WideArray,
} from "./tensor.ts";
export { Threads } from "./threads.ts";
export {
  type Transformer,
  type TransformerOptions,
  type TransformerSteps,
  transformer,
  transformerSteps,
} from "./transformer.ts";
export { type VarlenOptions, varlen } from "./varlen.ts";
export { type Binary, bestBinary, Engine } from "./wasm/engine.ts";
export { wasm } from "./wasm.ts";
