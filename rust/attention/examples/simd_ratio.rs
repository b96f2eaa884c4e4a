//! What the kernel for few rows gains in decode, as ratios that a shared machine cannot spoil much.
//!
//! `cargo run --release --example simd_ratio [TIER]`
//!
//! A tile has a query in each lane, so 4 rows take it as long as 16 do. The same keys and values are read in turn by
//! the kernel for few rows (G = 4, one query each) and by the tile (as many heads as fill a register): the quotient of
//! the two times is what the former gains over an idle tile. Median and best of some rounds.

use std::time::Instant;

use ndarray::Array4;
use rosetta_attention::{Sdpa, Tier, sdpa_simd};

/// B, KV heads, Tk and D; the last fits into the cache.
const SHAPES: [(usize, usize, usize, usize); 3] =
    [(1, 8, 4096, 128), (8, 8, 1024, 128), (1, 8, 512, 64)];

const ROUNDS: usize = 40;

/// Seconds of one call.
fn time(q: &Array4<f32>, k: &Array4<f32>, v: &Array4<f32>, tier: Tier) -> f64 {
    let start = Instant::now();
    std::hint::black_box(sdpa_simd(q, k, v, &Sdpa::default(), Some(tier)).expect("a legal call"));
    start.elapsed().as_secs_f64()
}

fn main() {
    let asked = std::env::args().nth(1).map(|name| name.parse().expect("the name of a tier"));
    let tier = Tier::choose(asked).expect("a tier of this machine");
    let (few, full) = match tier {
        Tier::Avx512 => (4, 16),
        Tier::Avx2 => (4, 8),
        Tier::Neon | Tier::Portable => (2, 4),
    }; // half a register or less, and a whole one
    for (batch, hkv, tk, d) in SHAPES {
        let ramp = |heads: usize, t: usize| {
            Array4::from_shape_fn((batch, heads, t, d), |(b, h, t, c)| {
                ((b * 7 + h * 5 + t * 3 + c) % 11) as f32 / 11.0 - 0.5
            })
        };
        let (k, v) = (ramp(hkv, tk), ramp(hkv, tk));
        let queries = [few, full].map(|group| ramp(hkv * group, 1));
        let mut rounds: Vec<[f64; 2]> =
            (0..ROUNDS).map(|_| [0, 1].map(|n| time(&queries[n], &k, &v, tier))).collect();
        let best = |n: usize| rounds.iter().map(|round| round[n]).fold(f64::INFINITY, f64::min);
        let (best_few, best_full) = (best(0), best(1));
        rounds.sort_by(|a, b| (a[1] / a[0]).total_cmp(&(b[1] / b[0])));
        let median = rounds[ROUNDS / 2];
        let gigabytes = 4e-9 * (k.len() + v.len()) as f64;
        println!(
            "{tier}, B {batch} Hkv {hkv} Tk {tk} D {d}: tile / few {:.2} (best times {:.2}); few {:.1} GB/s, tile {:.1}",
            median[1] / median[0],
            best_full / best_few,
            gigabytes / best_few,
            gigabytes / best_full,
        );
    }
}
