/** Timing of a prepared call, inside the port and around the library call alone. */

export interface Timing<R> {
  readonly firstNs: number;
  /** Evaluations in a sample. */
  readonly evals: number;
  /** Per evaluation. */
  readonly samplesNs: number[];
  readonly last: R;
}

export interface Plan {
  readonly warmup: number;
  readonly samples: number;
  readonly minSampleNs: number;
}

/** One call apart, `warmup` calls, then `samples` samples of as many calls as last `minSampleNs`. */
export function timeCall<R>(evaluate: () => R, { warmup, samples, minSampleNs }: Plan): Timing<R> {
  let last: R; // the results are kept, so that no call can be left out
  const elapsed = (evals: number): number => {
    const start = process.hrtime.bigint();
    for (let n = 0; n < evals; n++) last = evaluate();
    return Number(process.hrtime.bigint() - start);
  };

  const firstNs = elapsed(1);
  for (let n = 0; n < warmup; n++) elapsed(1);

  let evals = 1;
  let samplesNs: number[] = [];
  while (samplesNs.length < samples) {
    const took = elapsed(evals);
    if (took < minSampleNs) {
      // Too short, perhaps only now that the compiler has done its work: all samples anew, and longer.
      const missing = minSampleNs / Math.max(took, 1);
      evals = Math.ceil(evals * Math.min(10, 1.2 * missing));
      samplesNs = [];
    } else {
      samplesNs.push(took / evals);
    }
  }
  return { firstNs, evals, samplesNs, last: last! };
}
