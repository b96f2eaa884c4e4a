// How fast this engine multiplies and adds in WebAssembly at most: `node wasm_limit.js SECONDS` prints GFLOP/s as JSON.
//
// A loop of relaxed multiply-adds of four f32 lanes with TEN accumulators, enough to hide their latency. They are the
// addend; as a factor they would be copied. Where the engine has no relaxed SIMD, multiply and add are two instructions.

const TEN = 10;
const OPS = 2 * 4 * TEN; // of a turn of the loop: a multiply and an add in four lanes each
const V128 = 0x7b;
const F32X4_MUL = [0xfd, 0xe6, 0x01];
const F32X4_ADD = [0xfd, 0xe4, 0x01];
const RELAXED_MADD = [0xfd, 0x85, 0x02];

/** @param {number[]} body */
const sized = (body) => [...leb(body.length), ...body];
/** @param {number} n */
const leb = (n) => (n < 128 ? [n] : [(n & 127) | 128, ...leb(n >> 7)]);
/** @param {number} i */
const get = (i) => [0x20, i];
/** @param {number} i */
const set = (i) => [0x21, i];

/** The module: (turns: i32) => f32. Local 0 is the turns, 1 and 2 the factors, then the accumulators. */
function build(relaxed) {
  const one = [0x43, 0, 0, 128, 63, 0xfd, 0x13]; // f32.const 1, f32x4.splat
  const small = [0x43, 0, 0, 0, 0x30, 0xfd, 0x13]; // a small constant: sums neither overflow nor become subnormal
  const turn = [];
  for (let i = 3; i < 3 + TEN; i++) {
    const product = [...get(1), ...get(2)];
    turn.push(
      ...(relaxed
        ? [...product, ...get(i), ...RELAXED_MADD]
        : [...product, ...F32X4_MUL, ...get(i), ...F32X4_ADD]),
      ...set(i),
    );
  }
  const count = [...get(0), 0x41, 1, 0x6b, 0x22, 0, 0x0d, 0]; // turns - 1, kept, and again while it is not 0
  const sum = get(3);
  for (let i = 4; i < 3 + TEN; i++) sum.push(...get(i), ...F32X4_ADD);
  const code = [
    1,
    2 + TEN,
    V128,
    ...one,
    ...set(1),
    ...small,
    ...set(2),
    0x03,
    0x40,
    ...turn,
    ...count,
    0x0b,
  ];
  code.push(...sum, 0xfd, 0x1f, 0, 0x0b); // f32x4.extract_lane 0
  const section = (id, body) => [id, ...sized(body)];
  return new Uint8Array([
    ...[0, 97, 115, 109, 1, 0, 0, 0],
    ...section(1, [1, 0x60, 1, 0x7f, 1, 0x7d]),
    ...section(3, [1, 0]),
    ...section(7, [1, 1, 102, 0, 0]),
    ...section(10, [1, ...sized(code)]),
  ]);
}

const relaxed = WebAssembly.validate(build(true));
const run = new WebAssembly.Instance(new WebAssembly.Module(build(relaxed))).exports.f;
const turns = 100_000;
const seconds = Number(process.argv[2] ?? 0.5);
for (let i = 0; i < 200; i++) run(1000); // many short calls: the engine replaces no function that is running
let best = 0;
for (const end = performance.now() + 1000 * seconds; performance.now() < end; ) {
  const start = performance.now();
  run(turns);
  best = Math.max(best, (OPS * turns) / (performance.now() - start) / 1e6);
}
console.log(JSON.stringify({ gflops: best, relaxed }));
