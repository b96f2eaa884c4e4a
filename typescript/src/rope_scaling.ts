/**
 * How rotary frequencies are stretched for sequences longer than those of the training.
 *
 *     f_i = base^(-2i/R) becomes f'_i, and cosine and sine are multiplied by an attention factor
 *
 * Letters: R rotated channels, L the length of the sequence, L0 the length of the training, s the factor.
 *
 * Sources: Chen et al., "Extending Context Window via Position Interpolation", 2023 (linear); bloc97,
 * "Dynamic NTK", 2023 (dynamic); Peng et al., "YaRN", 2023; "The Llama 3 Herd of Models", 2024 (llama3); Ding
 * et al., "LongRoPE", 2024.
 */

export interface LinearScaling {
  readonly type: "linear";
  readonly factor: number;
}

export interface DynamicScaling {
  readonly type: "dynamic";
  readonly factor: number;
  readonly originalLength: number;
  /** Absent: the largest position of the row plus 1. */
  readonly length?: number | null;
}

export interface YarnScaling {
  readonly type: "yarn";
  readonly factor: number;
  readonly originalLength: number;
  /** Turns within L0 from which a pair keeps its frequency. Absent: 32. */
  readonly betaFast?: number | null;
  /** Turns within L0 below which it is wholly stretched. Absent: 1. */
  readonly betaSlow?: number | null;
  /** Absent: 0.1 ln s + 1. */
  readonly attentionFactor?: number | null;
  /** Whether the ends of the ramp are whole pairs. Absent: true. */
  readonly truncate?: boolean | null;
}

export interface Llama3Scaling {
  readonly type: "llama3";
  readonly factor: number;
  readonly originalLength: number;
  /** Absent: 1. */
  readonly lowFreqFactor?: number | null;
  /** Absent: 4. */
  readonly highFreqFactor?: number | null;
}

export interface LongRopeScaling {
  readonly type: "longrope";
  /** (R/2,), up to the length of the training */
  readonly shortFactor: readonly number[];
  /** (R/2,), beyond it */
  readonly longFactor: readonly number[];
  readonly originalLength: number;
  /** Only for the attention factor. */
  readonly factor?: number | null;
  /** Absent: sqrt(1 + ln s / ln L0). */
  readonly attentionFactor?: number | null;
  /** Absent: the largest position of the row plus 1. */
  readonly length?: number | null;
}

export type RopeScaling = LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling | LongRopeScaling;

/** What absent numbers are, but for attention factors and lengths. */
export const DEFAULTS = {
  linear: {},
  dynamic: {},
  yarn: { betaFast: 32, betaSlow: 1, truncate: true },
  llama3: { lowFreqFactor: 1, highFreqFactor: 4 },
  longrope: { factor: 1 },
} as const;

export interface ScaledFrequencies {
  /** (R/2,), in doubles */
  readonly frequencies: number[];
  /** On cosine and sine. */
  readonly attentionFactor: number;
}

/** base^(-2i/R) for each of the R/2 pairs. */
export function frequenciesOf(base: number, R: number): number[] {
  return Array.from({ length: R / 2 }, (_, i) => base ** ((-2 * i) / R)); // (R/2,)
}

/** What becomes of `f` (R/2,) in a row whose positions are all below `length`. Checks nothing. */
export function scaledFrequencies(
  f: number[],
  scaling: RopeScaling | null,
  base: number,
  length: number,
): ScaledFrequencies {
  const R = 2 * f.length;
  if (scaling === null) return { frequencies: f, attentionFactor: 1 };

  // 1. linear: all positions move closer together
  if (scaling.type === "linear") {
    return { frequencies: f.map((f_i) => f_i / scaling.factor), attentionFactor: 1 };
  }

  // 2. dynamic: the base grows with what exceeds L0, and the slowest pair turns no further than it did there
  if (scaling.type === "dynamic") {
    const { factor: s, originalLength: L0 } = scaling;
    const L = scaling.length ?? length;
    if (L <= L0 || R === 2) return { frequencies: f, attentionFactor: 1 };
    const larger = base * ((s * L) / L0 - (s - 1)) ** (R / (R - 2));
    return { frequencies: frequenciesOf(larger, R), attentionFactor: 1 };
  }

  // 3. yarn: fast pairs stay, slow ones are stretched, with a ramp between them
  if (scaling.type === "yarn") {
    const { factor: s, originalLength: L0, betaFast, betaSlow, attentionFactor, truncate } = scaling;
    const pairOf = (turns: number) => (R * Math.log(L0 / (2 * Math.PI * turns))) / (2 * Math.log(base));
    let low = pairOf(betaFast ?? DEFAULTS.yarn.betaFast);
    let high = pairOf(betaSlow ?? DEFAULTS.yarn.betaSlow);
    if (truncate ?? DEFAULTS.yarn.truncate) [low, high] = [Math.floor(low), Math.ceil(high)];
    [low, high] = [clamp(low, 0, R - 1), clamp(high, 0, R - 1)];
    if (low === high) high += 0.001;
    const ramp = f.map((_, i) => clamp((i - low) / (high - low), 0, 1)); // (R/2,)
    return {
      frequencies: f.map((f_i, i) => f_i * (1 - ramp[i]!) + (f_i / s) * ramp[i]!), // (R/2,)
      attentionFactor: attentionFactor ?? (s > 1 ? 0.1 * Math.log(s) + 1 : 1),
    };
  }

  // 4. llama3: by wavelength; what turns often within L0 stays, what hardly turns is stretched
  if (scaling.type === "llama3") {
    const { factor: s, originalLength: L0 } = scaling;
    const low = scaling.lowFreqFactor ?? DEFAULTS.llama3.lowFreqFactor;
    const high = scaling.highFreqFactor ?? DEFAULTS.llama3.highFreqFactor;
    const stretched = (f_i: number) => {
      const wavelength = (2 * Math.PI) / f_i;
      if (wavelength < L0 / high) return f_i;
      if (wavelength > L0 / low) return f_i / s;
      const t = ((L0 * f_i) / (2 * Math.PI) - low) / (high - low);
      return ((1 - t) * f_i) / s + t * f_i;
    };
    return { frequencies: f.map(stretched), attentionFactor: 1 };
  }

  // 5. longrope: a searched factor for every pair, one list within L0 and one beyond
  const { originalLength: L0, attentionFactor } = scaling;
  const s = scaling.factor ?? DEFAULTS.longrope.factor;
  const L = scaling.length ?? length;
  const factors = L > L0 ? scaling.longFactor : scaling.shortFactor; // (R/2,)
  const grown = s > 1 ? Math.sqrt(1 + Math.log(s) / Math.log(L0)) : 1;
  return { frequencies: f.map((f_i, i) => f_i / factors[i]!), attentionFactor: attentionFactor ?? grown };
}

function clamp(x: number, least: number, most: number): number {
  return Math.min(Math.max(x, least), most);
}
