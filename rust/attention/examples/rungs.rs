//! What the blocked rung and two threads gain, as ratios that a shared machine cannot spoil much.
//!
//! `cargo run --release --example rungs`
//!
//! The rungs take turns, round by round, and the best time of each counts: blocked against the readable one, and the
//! simd rung on one thread against its work shared by two.

use std::time::Instant;

use ndarray::Array4;
use rosetta_attention::{Float, Mask, Sdpa, blocked, sdpa, sdpa_simd, sdpa_threads};

const ROUNDS: usize = 15;

/// Hq, Hkv, Tq, Tk, D and whether it is causal: small, prefill, decode in groups and without.
const READABLE: [(usize, usize, usize, usize, usize, bool); 7] = [
    (4, 4, 16, 16, 32, false),
    (2, 2, 128, 128, 64, false),
    (2, 2, 512, 512, 64, false),
    (2, 2, 512, 512, 64, true),
    (2, 2, 256, 256, 128, false),
    (8, 2, 1, 2048, 128, false),
    (4, 4, 1, 2048, 64, false),
];

const SHARED: [(usize, usize, usize, usize, usize, bool); 4] = [
    (8, 8, 512, 512, 64, false),
    (8, 8, 2048, 2048, 64, false),
    (8, 8, 2048, 2048, 64, true),
    (32, 8, 1, 4096, 128, false),
];

/// The best seconds of two calls that take turns.
fn best(mut one: impl FnMut(), mut other: impl FnMut()) -> [f64; 2] {
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        let start = Instant::now();
        one();
        let middle = Instant::now();
        other();
        best[0] = best[0].min((middle - start).as_secs_f64());
        best[1] = best[1].min(middle.elapsed().as_secs_f64());
    }
    best
}

fn arrays<T: Float>(
    (hq, hkv, tq, tk, d, _): (usize, usize, usize, usize, usize, bool),
) -> [Array4<T>; 3] {
    [(hq, tq), (hkv, tk), (hkv, tk)].map(|(heads, t)| {
        Array4::from_shape_fn((1, heads, t, d), |(_, h, t, c)| {
            T::from_f64(((h * 5 + t * 3 + c * 7) % 11) as f64 / 11.0 - 0.5)
        })
    })
}

fn options<'a, T>(causal: bool) -> Sdpa<'a, T> {
    Sdpa { mask: Mask { causal, ..Mask::default() }, ..Sdpa::default() }
}

fn against_readable<T: Float>(name: &str) {
    for shape in READABLE {
        let ([q, k, v], options) = (arrays::<T>(shape), options(shape.5));
        let [readable, fast] = best(
            || drop(sdpa(&q, &k, &v, &options).expect("a legal call")),
            || drop(blocked(&q, &k, &v, &options).expect("a legal call")),
        );
        println!("{name} {shape:?}: blocked {:.1} times as fast", readable / fast);
    }
}

fn main() {
    against_readable::<f32>("f32");
    against_readable::<f64>("f64");
    for shape in SHARED {
        let ([q, k, v], options) = (arrays::<f32>(shape), options(shape.5));
        let [alone, shared] = best(
            || drop(sdpa_simd(&q, &k, &v, &options, None).expect("a legal call")),
            || drop(sdpa_threads(&q, &k, &v, &options, None, 2).expect("a legal call")),
        );
        println!("f32 {shape:?}: two threads {:.2} times as fast as one", alone / shared);
    }
}
