//! What decode gains on caches of few bits, and what pages cost, as ratios in one interleaved run.
//!
//! `cargo run --release --example cache_ratio [TK [ROUNDS [TIER]]]`
//!
//! One query of each of 32 heads over 8 KV heads and TK slots (16384 without) of 128 channels: 128 MiB of f32. All
//! kinds are attended to in turn, so that what else the machine does meets all of them. Best times, and the ratios of
//! them to that of f32 in one block; GB/s count the bytes of the kind itself.

use std::time::Instant;

use ndarray::{Array4, s};
use rosetta_attention::{
    Append, Cache, Format, KvCache, PagePool, PageSizes, PagedCache, Quantisation, QuantisedCache,
    Sdpa, Stored, Tier, cast,
};

const HEADS: usize = 8;
const GROUP: usize = 4;
const D: usize = 128;

/// Slots that are filled at a time, so that the f32 that they come as take little memory.
const CHUNK: usize = 4096;

/// A cache, its name and its bytes, behind the time of one attend.
type Kind = (String, usize, Box<dyn Fn(&Array4<f32>, Tier) -> f64>);

/// The cache, filled.
fn filled<S: Stored<Compute = f32>>(
    name: &str,
    mut cache: impl Cache<S> + 'static,
    tk: usize,
) -> Kind {
    let ramp = |t: usize, salt: usize| {
        Array4::from_shape_fn((1, HEADS, t, D), |(_, h, t, c)| {
            ((h * 5 + t * 3 + c * salt) % 11) as f32 / 11.0 - 0.5
        })
    };
    let (k, v): (Array4<S>, Array4<S>) = (cast(&ramp(CHUNK, 7)), cast(&ramp(CHUNK, 13)));
    for start in (0..tk).step_by(CHUNK) {
        let part = s![.., .., ..CHUNK.min(tk - start), ..];
        cache.append(&k.slice(part), &v.slice(part), &Append::default()).expect("a legal append");
    }
    let bytes = cache.stats().bytes;
    let time = move |q: &Array4<f32>, tier: Tier| {
        let start = Instant::now();
        let result = cache.attend_simd(q, &Sdpa::default(), Some(tier)).expect("a legal call");
        std::hint::black_box(result);
        start.elapsed().as_secs_f64()
    };
    (name.to_string(), bytes, Box::new(time))
}

fn quantised(format: Format, zero_point: bool, tk: usize) -> Kind {
    let quantisation = Quantisation { format, group: None, zero_point };
    let cache = QuantisedCache::<f32>::new(1, HEADS, D, D, quantisation, Some(tk));
    let name = if zero_point { format!("{format} with zeros") } else { format.to_string() };
    filled(&name, cache.expect("legal sizes"), tk)
}

fn paged(page_size: usize, tk: usize) -> Kind {
    let num_pages = tk.div_ceil(page_size);
    let sizes = PageSizes { num_pages, page_size, num_kv_heads: HEADS, head_dim: D, value_dim: D };
    let pool = PagePool::<f32>::new(sizes).expect("legal sizes");
    let cache = PagedCache::new(&pool, 1).expect("a legal batch");
    filled(&format!("f32 in pages of {page_size}"), cache, tk)
}

fn plain<S: Stored<Compute = f32>>(name: &str, tk: usize) -> Kind {
    filled(name, KvCache::<S>::new(1, HEADS, D, D, Some(tk)).expect("legal sizes"), tk)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number =
        |default: usize| arguments.next().map_or(default, |text| text.parse().expect("an integer"));
    let (tk, rounds) = (number(16_384), number(9));
    let tier = Tier::choose(arguments.next().map(|name| name.parse().expect("a tier")));
    let tier = tier.expect("a tier of this machine");
    let kinds = [
        plain::<f32>("f32", tk),
        plain::<half::f16>("f16", tk),
        plain::<half::bf16>("bf16", tk),
        quantised(Format::Fp8E4m3, false, tk),
        quantised(Format::Int8, false, tk),
        quantised(Format::Int8, true, tk),
        quantised(Format::Int4, false, tk),
        quantised(Format::Int4, true, tk),
        paged(16, tk),
        paged(64, tk),
    ];
    let q = Array4::from_shape_fn((1, HEADS * GROUP, 1, D), |(_, h, _, c)| {
        ((h * 3 + c) % 7) as f32 / 7.0 - 0.5
    });
    let mut best = vec![f64::INFINITY; kinds.len()];
    for round in 0..rounds {
        for n in 0..kinds.len() {
            let n = (n + round) % kinds.len(); // each in every place
            best[n] = best[n].min(kinds[n].2(&q, tier));
        }
    }
    println!("{tier}, Hq {} Hkv {HEADS} Tk {tk} D {D}, best of {rounds}", HEADS * GROUP);
    for ((name, bytes, _), time) in kinds.iter().zip(&best) {
        println!(
            "{name:18} {:8.2} ms, {:5.1} GB/s, {:5.2} times as fast as f32",
            time * 1e3,
            *bytes as f64 / time / 1e9,
            best[0] / time,
        );
    }
}
