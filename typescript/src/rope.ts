/**
 * Rotary positions (RoPE): pairs of channels turn by an angle that grows with the position.
 *
 *     (a, b) becomes (a cos - b sin, a sin + b cos),   angle = position · base^(-2i/R) for pair i
 *
 * The score of a rotated query and a rotated key depends on the distance between them only. Angles are taken
 * in doubles: in float32 those of late positions would be wrong by whole per mille of a turn.
 *
 * Letters: B batch, H heads, T length, D head size, R <= D rotated channels, P rows of a table.
 *
 * Source: Su et al., "RoFormer", 2021, section 3.4.2.
 */

import { inFloat32 } from "./cast.ts";
import { checkRope } from "./checks_positions.ts";
import { frequenciesOf, type RopeScaling, scaledFrequencies } from "./rope_scaling.ts";
import { type FloatArray, type IntTensor, sizes4, type Tensor, zerosLike } from "./tensor.ts";

/** How to rotate, whatever is rotated. null and undefined both mean absent. */
export interface Rope {
  /** Absent: 10000. */
  readonly base?: number | null;
  /** Pair i is channels (2i, 2i + 1), not (i, i + R/2). Absent: false. */
  readonly interleaved?: boolean | null;
  /** R, even: the channels from there on pass through. Absent: D. */
  readonly rotaryDim?: number | null;
  /** The position of token 0, where no positions are given. Absent: 0. */
  readonly offset?: number | null;
  readonly scaling?: RopeScaling | null;
}

export interface RopeOptions<A extends FloatArray = FloatArray> extends Rope {
  /** (B, T): the position of each token. */
  readonly positions?: IntTensor | null;
  /** (P, R/2), row p belongs to position p; with `sin` it takes the place of base and scaling. */
  readonly cos?: Tensor<A> | null;
  /** (P, R/2) */
  readonly sin?: Tensor<A> | null;
}

export interface RopeSteps<A extends FloatArray = FloatArray> {
  /** (B, H, T, D) */
  readonly output: Tensor<A>;
  /** (B, T, R/2), the attention factor of a scaling included */
  readonly cos: Tensor<A>;
  /** (B, T, R/2) */
  readonly sin: Tensor<A>;
}

/**
 * `x` (B, H, T, D) rotated at its positions: (B, H, T, D).
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function rope<A extends FloatArray>(x: Tensor<A>, options: RopeOptions<A> = {}): Tensor<A> {
  return ropeSteps(x, options).output;
}

/** {@link rope} with its tables; same arguments and errors. */
export function ropeSteps<A extends FloatArray>(x: Tensor<A>, options: RopeOptions<A> = {}): RopeSteps<A> {
  checkRope("rope", x, options);
  return inFloat32(ropeCore<A>, x, options);
}

/** What {@link ropeSteps} does behind the edge. */
export function ropeCore<A extends FloatArray>(x: Tensor<A>, options: RopeOptions<A>): RopeSteps<A> {
  const [B, H, T, D] = sizes4(x);
  const R = options.rotaryDim ?? D;
  const cos = zerosLike(x, [B, T, R / 2]);
  const sin = zerosLike(x, [B, T, R / 2]);
  for (let b = 0; b < B; b++) {
    const positions = positionsOf(b, T, options.positions, options.offset); // (T,)

    // 1. frequencies: base^(-2i/R) for pair i
    const base = options.base ?? 10000;
    const plain = frequenciesOf(base, R); // (R/2,)

    // 2. scaling: by the length of this row alone
    const length = positions.reduce((most, p) => Math.max(most, p + 1), 0);
    const scaling = options.scaling ?? null;
    const { frequencies, attentionFactor } = scaledFrequencies(plain, scaling, base, length); // (R/2,)

    // 3. angles: in doubles; only their cosine and sine are rounded. Tables are looked up instead
    for (let at = 0; at < (T * R) / 2; at++) {
      const [p, i] = [positions[Math.floor(at / (R / 2))]!, at % (R / 2)];
      const angle = p * frequencies[i]!;
      const place = b * T * (R / 2) + at;
      cos.data[place] = options.cos?.data[p * (R / 2) + i] ?? Math.cos(angle) * attentionFactor; // (T, R/2)
      sin.data[place] = options.sin?.data[p * (R / 2) + i] ?? Math.sin(angle) * attentionFactor; // (T, R/2)
    }
  }

  // 4. rotate: the channels from R on pass through
  const output = { data: x.data.slice() as A, shape: x.shape }; // (B, H, T, D)
  for (let row = 0; row < B * H * T; row++) {
    const table = (Math.floor(row / (H * T)) * T + (row % T)) * (R / 2); // where its angles begin
    for (let i = 0; i < R / 2; i++) {
      const [first, second] = options.interleaved ? [2 * i, 2 * i + 1] : [i, i + R / 2];
      const [a, b] = [x.data[row * D + first]!, x.data[row * D + second]!];
      const [c, s] = [cos.data[table + i]!, sin.data[table + i]!];
      output.data[row * D + first] = a * c - b * s;
      output.data[row * D + second] = a * s + b * c;
    }
  }
  return { output, cos, sin };
}

/** The positions of the T tokens of row `b`: given, or counted from an offset. */
export function positionsOf(
  b: number,
  T: number,
  positions: IntTensor | null | undefined,
  offset: number | null | undefined,
): number[] {
  return Array.from({ length: T }, (_, t) =>
    positions ? Number(positions.data[b * T + t]) : t + (offset ?? 0),
  );
}
