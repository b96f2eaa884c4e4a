/** Timing of a prepared call, inside the port and around the library call alone. */

export interface Timing<R> {
  readonly firstNs: number;
  /** Evaluations in a sample. */
  readonly evals: number;
  /** Per evaluation. */
  readonly samplesNs: number[];
  /** Processor time of all threads over the samples together. */
  readonly cpuNs: number;
  /** The most memory that the process has held. */
  readonly peakBytes: number;
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
  let cpuNs = 0;
  while (samplesNs.length < samples) {
    const used = process.cpuUsage();
    const took = elapsed(evals);
    const { user, system } = process.cpuUsage(used); // microseconds
    if (took < minSampleNs) {
      // Too short, perhaps only now that the compiler has done its work: all samples anew, and longer.
      const missing = minSampleNs / Math.max(took, 1);
      evals = Math.ceil(evals * Math.min(10, 1.2 * missing));
      samplesNs = [];
      cpuNs = 0;
    } else {
      samplesNs.push(took / evals);
      cpuNs += 1000 * (user + system);
    }
  }
  const peakBytes = 1024 * process.resourceUsage().maxRSS;
  return { firstNs, evals, samplesNs, cpuNs, peakBytes, last: last! };
}
