// What an answer to `bench` says of a call: docs/protocol.md.

/** A first call apart, `warmup` calls, then `samples` samples of as many calls as last `min_sample_ns`; and the last result. */
export async function timeCall(call, { warmup = 1, samples = 5, min_sample_ns = 0 }) {
  let last;
  const elapsed = async (evals) => {
    const start = process.hrtime.bigint();
    for (let n = 0; n < evals; n++) last = await call();
    return Number(process.hrtime.bigint() - start);
  };
  const first_ns = await elapsed(1);
  for (let n = 0; n < warmup; n++) await elapsed(1);
  let evals = 1;
  let samples_ns = [];
  while (samples_ns.length < samples) {
    const took = await elapsed(evals);
    if (took < min_sample_ns) {
      evals *= 2;
      samples_ns = [];
    } else {
      samples_ns.push(took / evals);
    }
  }
  return { timing: { first_ns, evals, samples_ns }, last };
}
