/** The kinds of caches: what each needs of the config, which steps it knows, and how it is made. */

import {
  type Cache,
  CrossCache,
  type FloatDtype,
  KiviCache,
  type KiviCacheOptions,
  KVCache,
  type KVCacheOptions,
  LatentCache,
  type LatentCacheOptions,
  PagedCache,
  PagePool,
  type PagePoolOptions,
  PerHeadCache,
  QuantisedCache,
  type QuantisedCacheOptions,
  RotatingCache,
  type RotatingCacheOptions,
  Unsupported,
} from "../src/index.ts";
import { type Config, field, ropeOptions } from "./config.ts";

interface Kind {
  /** Fields that must be there. */
  readonly needs: readonly string[];
  /** Steps that it does not know. */
  readonly lacks: readonly string[];
  /** The tensors of an append. */
  readonly parts: readonly [string, string];
  build(config: Config, dtype: FloatDtype): Cache;
}

const SIZES = ["batch", "num_kv_heads", "head_dim"];
const PAIRS = { needs: SIZES, lacks: ["evict", "shift"], parts: ["k", "v"] } as const;

export const KINDS: Readonly<Record<string, Kind>> = {
  contiguous: {
    ...PAIRS,
    lacks: [],
    build: (config, dtype) => new KVCache(sizes(config, dtype)),
  },
  per_head: {
    ...PAIRS,
    lacks: ["truncate"],
    build: (config, dtype) => new PerHeadCache(sizes(config, dtype)),
  },
  rotating: {
    ...PAIRS,
    needs: [...SIZES, "window"],
    build(config, dtype) {
      const options = { ...sizes(config, dtype), window: config.window, keep: config.keep };
      return new RotatingCache(options as RotatingCacheOptions<FloatDtype>);
    },
  },
  paged: {
    ...PAIRS,
    needs: [...SIZES, "page_size", "num_pages"],
    build(config, dtype) {
      const { batch, rope, ropeAt, ...perPage } = sizes(config, dtype);
      const options = { ...perPage, pageSize: config.page_size, numPages: config.num_pages };
      const pool = new PagePool(options as PagePoolOptions<FloatDtype>);
      return new PagedCache({ pool, batch, rope, ropeAt });
    },
  },
  quantised: {
    ...PAIRS,
    needs: [...SIZES, "format"],
    lacks: [],
    build(config, dtype) {
      const { format, group, zero_point: zeroPoint, key_groups: keyGroups } = config;
      const options = { ...sizes(config, dtype), format, group, zeroPoint };
      if (keyGroups == null) return new QuantisedCache(options as QuantisedCacheOptions<FloatDtype>);
      return new KiviCache({ ...options, keyGroups } as KiviCacheOptions<FloatDtype>);
    },
  },
  latent: {
    needs: ["batch", "latent_dim", "rope_dim"],
    lacks: ["evict", "shift"],
    parts: ["latent", "rope_key"],
    build(config, dtype) {
      const { batch, latent_dim: latentDim, rope_dim: ropeDim, capacity } = config;
      const options = { batch, latentDim, ropeDim, capacity, dtype };
      return new LatentCache(options as LatentCacheOptions<FloatDtype>);
    },
  },
  cross: {
    ...PAIRS,
    lacks: [...PAIRS.lacks, "append_attend", "truncate"],
    build: (config, dtype) => new CrossCache(sizes(config, dtype)),
  },
};

/** @throws Unsupported, and InvalidRequest for a field that is missing. */
export function kindOf(config: Config): Kind {
  const name = config.kind ?? "contiguous";
  if (typeof name !== "string" || !Object.hasOwn(KINDS, name)) throw new Unsupported(`kind.${name}`);
  return KINDS[name]!;
}

/** @throws InvalidRequest. */
export function checkNeeds(config: Config, { needs }: Kind): void {
  for (const name of needs) field(config, name);
}

function sizes(config: Config, dtype: FloatDtype): KVCacheOptions<FloatDtype> {
  return {
    batch: config.batch,
    numKvHeads: config.num_kv_heads,
    headDim: config.head_dim,
    valueDim: config.value_dim,
    capacity: config.capacity,
    rope: ropeOptions(config.rope),
    ropeAt: config.rope_at,
    track: config.track,
    dtype,
  } as KVCacheOptions<FloatDtype>;
}
