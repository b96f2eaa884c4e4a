/**
 * The error function in doubles, which JavaScript lacks.
 *
 *     erf(x) = 2/sqrt(π) ∫_0^x e^(-t²) dt
 *
 * Near 0 by the series whose terms are all positive, so that nothing cancels; further out as 1 minus the
 * continued fraction of the complement, which is small there, and its error smaller still.
 *
 * Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 1964, 7.1.6 and 7.1.14.
 */

const SERIES_UNTIL = 2;
const ONE_FROM = 6; // the complement is below 2^-54 from 5.93 on
const DEPTH = 60; // enough for a double at SERIES_UNTIL, where the fraction converges slowest

/** Within a few units of the last place. NaN gives NaN. */
export function erf(x: number): number {
  const size = Math.abs(x);
  if (size <= SERIES_UNTIL) return series(x);
  if (size < ONE_FROM) return Math.sign(x) * (1 - complement(size));
  return Math.sign(x); // NaN of NaN
}

/** 2/sqrt(π) e^(-x²) (x + 2/3 x³ + 2²/(3·5) x⁵ + ...). */
function series(x: number): number {
  let term = x;
  let sum = x;
  for (let n = 1; ; n++) {
    term *= (2 * x * x) / (2 * n + 1);
    if (sum + term === sum) break;
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

/** e^(-x²)/sqrt(π) · 1/(x + (1/2)/(x + (2/2)/(x + (3/2)/(x + ...)))), from the inside out. */
function complement(x: number): number {
  let tail = x;
  for (let n = DEPTH; n >= 1; n--) tail = x + n / 2 / tail;
  return Math.exp(-x * x) / Math.sqrt(Math.PI) / tail;
}
