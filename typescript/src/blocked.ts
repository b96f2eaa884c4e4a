/**
 * Attention in blocks of queries and keys that stay in the cache: the same result as {@link sdpa}, in plain loops.
 *
 * What it changes: numbers are widened to float64 once a block, not once a product. Rows lie four side by side in a
 * *line*, so that a tile of four rows and two keys, or two channels, is sixteen operations on six numbers that follow each
 * other (blocked_tiles.ts says why four by two). Sixteen rows or fewer, as in decoding, meet keys and values where they
 * lie. The softmax is online, and what causality, a window or a length hides from a line is skipped. With less than four
 * keys nothing is shared, and {@link sdpa} does the work.
 *
 * What that gained: 3.2 to 3.6 times the speed of {@link sdpa} for many queries, 3.4 in decode with groups of four, 1.8
 * without groups and at 16 x 16 (`node experiments/wasm_ratio.ts 30`).
 *
 * Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk lengths, D and Dv head sizes, L rows of
 * a line, Bk keys of a block.
 *
 * Sources: Lam, Rothberg and Wolf, "The cache performance and optimizations of blocked algorithms", 1991; Goto and
 * van de Geijn, "Anatomy of high-performance matrix multiplication", 2008 (tiles in registers, panels).
 */

import {
  CHANNELS,
  divide,
  K,
  KEYS,
  numbers,
  O,
  placeKeys,
  placeRows,
  placeValues,
  Q,
  ROWS,
  type Rows,
  S,
  scoreRow,
  scoreTile,
  sumRow,
  sumTile,
  sumVisible,
  tile,
  V,
  weigh,
} from "./blocked_tiles.ts";
import { inFloat32 } from "./cast.ts";
import { checkSdpa } from "./checks_attention.ts";
import { Unsupported } from "./errors.ts";
import { intervals, positionsOf } from "./intervals.ts";
import type { Attended } from "./merge.ts";
import { type SdpaOptions, sdpaCore } from "./sdpa.ts";
import { broadcastIndex, type FloatArray, sizes4, type Tensor, zerosLike, zerosWide } from "./tensor.ts";

/** So many rows, and fewer, meet keys and values where they lie: making a block of these would cost more. */
const FEW = 16;
/** With fewer keys no block is worth being made. */
const FEW_KEYS = 4;

/**
 * {@link sdpa} of `q` (B, Hq, Tq, D), `k` (B, Hkv, Tk, D) and `v` (B, Hkv, Tk, Dv), with its log-sum-exp.
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig, Unsupported for dropout.
 */
export function blocked<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: SdpaOptions<A> = {},
): Attended<A> {
  checkSdpa("blocked", q, k, v, options);
  if (options.dropout != null) throw new Unsupported("dropout");
  return inFloat32(blockedCore<A>, q, k, v, options);
}

/** What {@link blocked} does behind the edge. */
function blockedCore<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: SdpaOptions<A>,
): Attended<A> {
  const { bias, softcap, sinks } = options;
  const [B, Hq, Tq, D] = sizes4(q);
  const [, Hkv, Tk, Dv] = sizes4(v);
  if (Tk < FEW_KEYS) return sdpaCore(q, k, v, options);
  const G = Hkv === 0 ? 0 : Hq / Hkv;
  const R = G * Tq;
  const L = R === 1 ? 1 : 4;
  const scale = options.scale ?? 1 / Math.sqrt(D);
  const mask = options.mask ?? {};
  const sees = intervals(positionsOf(mask, B, Tk));
  const keep = mask.keep;
  const keepAt = broadcastIndex(keep?.shape ?? []);
  const biasAt = broadcastIndex(bias?.shape ?? []);
  const output = zerosLike(q, [B, Hq, Tq, Dv]);
  const lse = zerosWide(q, [B, Hq, Tq]);

  const [m, l, seen] = [new Float64Array(ROWS), new Float64Array(ROWS), new Uint8Array(ROWS)];
  const state: Rows = { m, l, seen }; // of each row
  const [from, to] = [new Float64Array(ROWS), new Float64Array(ROWS)]; // its keys
  const [starts, stops] = [new Int32Array(ROWS), new Int32Array(ROWS)]; // of each line, the keys of a block
  const M = numbers;

  for (const [kvHead, first, panel] of blocksOf(B * Hkv, R, Dv)) {
    // 1. rows: of all heads of the group, L side by side, scaled and widened once; each begins with its sink or nothing
    const [b, firstHead] = [Math.floor(kvHead / Hkv), (kvHead % Hkv) * G];
    const rows = Math.min(ROWS, R - first);
    const place = kvHead * R + first; // of the first row, in (B, Hq, Tq)
    const width = Math.min(CHANNELS, Dv - panel); // channels of a value here
    const wide = width + (width & 1); // and room for an even number
    const lines = Math.ceil(rows / L);
    M.fill(0, O, O + lines * L * wide);
    seen.fill(0);
    from.fill(Tk);
    to.fill(0);
    let [begin, end] = [Tk, 0]; // the keys that some row sees
    for (let r = 0; r < rows; r++) {
      m[r] = sinks?.data[firstHead + Math.floor((first + r) / Tq)] ?? -Infinity; // (rows,)
      l[r] = m[r] === -Infinity ? 0 : Math.exp(m[r]! - m[r]!); // (rows,)
      const [start, stop] = sees(b, (first + r) % Tq);
      if (start === stop) continue;
      [from[r], to[r]] = [start, stop];
      begin = Math.min(begin, start);
      end = Math.max(end, stop);
    }
    if (D <= CHANNELS) placeRows(q.data, place * D, rows, D, D, scale, L); // (lines, D, L)

    for (let firstK = begin; firstK < end; firstK += KEYS) {
      const keys = Math.min(KEYS, end - firstK);
      const at = kvHead * Tk + firstK; // of the first key, in (B, Hkv, Tk)
      const direct = rows <= FEW;
      for (let line = 0; line < lines; line++) {
        [starts[line], stops[line]] = narrowed(from, to, line * L, L, firstK, keys);
      }

      // 2. scores: of a block of keys, in tiles of four rows and two keys, for each line those that some row of it sees
      M.fill(0, S, S + lines * KEYS * L);
      for (let c = 0; c < D; c += CHANNELS) {
        const channels = Math.min(CHANNELS, D - c);
        if (D > CHANNELS) placeRows(q.data, place * D + c, rows, D, channels, scale, L); // (lines, channels, L)
        if (!direct) placeKeys(k.data, at * D + c, keys, D, channels); // (Bk / 2, channels, 2)
        for (let line = 0; line < lines; line++) {
          const hi = stops[line]!;
          const [a, s] = [Q + line * channels * L, S + line * KEYS * L];
          if (L === 1) {
            scoreRow(a, k.data, at * D + c, keys, D, channels, s);
          } else {
            for (let n = starts[line]! & ~1; n < hi; n += 2) {
              if (direct) scoreTile(a, k.data, (at + n) * D + c, n + 1 < hi ? D : 0, channels, s + n * L);
              else tile(a, K + n * channels, channels, s + n * L);
            }
          }
        }
      } // (lines, Bk, L)

      // 3. mask: softcap, bias, then selection; a hidden slot is -inf whatever its score was
      for (let r = 0; r < rows; r++) {
        const [h, i] = [firstHead + Math.floor((first + r) / Tq), (first + r) % Tq];
        const s = S + (r - (r % L)) * KEYS + (r % L);
        const [lo, hi] = [starts[Math.floor(r / L)]!, stops[Math.floor(r / L)]!];
        if (softcap != null) {
          for (let n = lo; n < hi; n++) M[s + n * L] = softcap * Math.tanh(M[s + n * L]! / softcap);
        }
        if (bias != null) {
          for (let n = lo; n < hi; n++) {
            const added = bias.data[biasAt(b, h, i, firstK + n)]!;
            M[s + n * L] = added === -Infinity ? added : M[s + n * L]! + added;
          }
        }
        if (keep != null) {
          for (let n = lo; n < hi; n++)
            if (keep.data[keepAt(b, h, i, firstK + n)] === 0) M[s + n * L] = -Infinity;
        }
        for (let n = lo; n < Math.min(hi, from[r]! - firstK); n++) M[s + n * L] = -Infinity;
        for (let n = Math.max(lo, to[r]! - firstK); n < hi; n++) M[s + n * L] = -Infinity;
      } // (lines, Bk, L)

      // 4. softmax: online; when the maximum rises, what was summed up before shrinks
      let someHidden = 0;
      for (let r = 0; r < rows; r++) {
        const line = Math.floor(r / L);
        const [s, o] = [S + line * KEYS * L + (r % L), O + line * wide * L + (r % L)];
        someHidden |= weigh(state, r, s, starts[line]!, stops[line]!, L, o, wide);
      } // (lines, Bk, L)

      // 5. weighted sum: in tiles of four rows and two channels; where a value is no number, hidden slots are left out instead
      const v0 = at * Dv + panel;
      const finite = direct ? !someHidden : placeValues(v.data, v0, keys, Dv, width); // (Dv / 2, Bk, 2)
      for (let line = 0; line < lines; line++) {
        const lo = starts[line]!;
        const n = stops[line]! - lo;
        const [s, x, o] = [S + (line * KEYS + lo) * L, v0 + lo * Dv, O + line * wide * L];
        if (!finite && someHidden) {
          sumVisible(s, v.data, x, n, Dv, width, L, o);
        } else if (L === 1) {
          sumRow(s, v.data, x, n, Dv, width, o);
        } else {
          for (let c = 0; c < width; c += 2) {
            if (direct) sumTile(s, v.data, x + c, c + 1 < width ? 1 : 0, n, Dv, o + c * L);
            else tile(s, V + c * KEYS + lo * 2, n, o + c * L);
          }
        }
      } // (lines, Dv, L)
    }

    // 6. output: one division; a row without a visible key is 0
    for (let r = 0; r < rows; r++) {
      const o = O + (r - (r % L)) * wide + (r % L);
      if (seen[r]) divide(o, L, width, l[r]!, output.data, (place + r) * Dv + panel); // (width,)
      lse.data[place + r] = m[r]! + Math.log(l[r]!);
    }
  }
  return { output, lse };
}

/** KV head, first row and first channel of the values, of each block of rows. */
function* blocksOf(heads: number, R: number, Dv: number): Generator<readonly [number, number, number]> {
  for (let head = 0; head < heads; head++) {
    for (let first = 0; first < R; first += ROWS) {
      for (let panel = 0; panel === 0 || panel < Dv; panel += CHANNELS) yield [head, first, panel];
    }
  }
}

/** Of `keys` keys from `first` on those that some of the L rows from `r` on see: [start, stop), counted from `first`. */
function narrowed(
  from: Float64Array,
  to: Float64Array,
  r: number,
  L: number,
  first: number,
  keys: number,
): readonly [number, number] {
  let [start, stop] = [keys, 0];
  for (let n = r; n < r + L; n++) {
    start = Math.min(start, from[n]! - first);
    stop = Math.max(stop, to[n]! - first);
  }
  start = Math.max(0, start);
  return [start, Math.max(start, Math.min(keys, stop))];
}
