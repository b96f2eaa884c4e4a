//! The kinds of caches on scripts that a person can check. Uniform form: q = 0, so the output is the mean of
//! the visible values. Names of flags are those of docs/traps.md.

use crate::common::{causal, column, expect_means, push, rows};
use half::f16;
use ndarray::{Array4, array, s};
use rosetta_attention::{
    Append, Cache, CrossCache, Format, KvCache, LatentCache, Mask, Padding, PageCounts, PagePool,
    PageSizes, PagedCache, Quantisation, QuantisedCache, Rope, RopeScaling, RotatingCache, Sdpa,
};

/// The means of what causal queries see.
fn expect(cache: &dyn Cache<f64>, means: &[f64]) {
    expect_means(cache, &causal(), means);
}

fn pool(num_pages: usize, page_size: usize) -> PagePool<f64> {
    let sizes = PageSizes { num_pages, page_size, num_kv_heads: 1, head_dim: 1, value_dim: 1 };
    PagePool::new(sizes).unwrap()
}

fn counts(used: usize, shared: usize, free: usize) -> PageCounts {
    PageCounts { used, shared, free }
}

fn code<T>(result: rosetta_attention::Result<T>) -> &'static str {
    result.map_or_else(|error| error.code(), |_| "ok")
}

#[test]
fn a_window_forgets_what_no_query_sees() {
    let mut cache = RotatingCache::new(1, 1, 1, 1, 3, 0).unwrap(); // WindowBoundary
    for (value, mean) in [(1.0, 1.0), (2.0, 1.5), (4.0, 7.0 / 3.0), (8.0, 14.0 / 3.0)] {
        push(&mut cache, &[value]);
        expect(&cache, &[mean]);
    }
    assert_eq!((cache.lengths(), cache.rows().positions()), (array![4], array![[1, 2, 3]]));
    push(&mut cache, &[16.0, 32.0, 64.0, 128.0, 256.0]); // wraps twice
    expect(&cache, &[28.0 / 3.0, 56.0 / 3.0, 112.0 / 3.0, 224.0 / 3.0, 448.0 / 3.0]);
    assert_eq!(cache.stats().positions, array![7]); // two of the old ones, and the chunk
    assert_eq!(cache.read().positions, array![[7, 8]]); // what the next query sees besides itself
}

#[test]
fn a_rotating_cache_rolls_back_within_its_window() {
    let mut cache = RotatingCache::new(1, 1, 1, 1, 3, 1).unwrap(); // Rollback
    push(&mut cache, &[1.0, 2.0, 4.0]);
    push(&mut cache, &[100.0, 200.0]);
    cache.truncate(&[4]).unwrap();
    push(&mut cache, &[8.0]);
    expect(&cache, &[113.0 / 4.0]);
    assert_eq!(code(cache.truncate(&[2])), "invalid_config"); // position 0 and 1 needed: 1 is there
    assert_eq!(code(cache.truncate(&[6])), "invalid_config");
}

#[test]
fn forks_share_pages_until_one_writes() {
    let pool = pool(4, 4);
    let mut prompt = PagedCache::new(&pool, 1).unwrap();
    push(&mut prompt, &[1.0, 2.0]);
    let (mut a, mut b) = (prompt.fork(), prompt.fork());
    drop(prompt);
    assert_eq!(pool.counts(), counts(1, 1, 3));
    push(&mut *a, &[10.0]);
    push(&mut *b, &[20.0]);
    expect(&*a, &[13.0 / 3.0]);
    expect(&*b, &[23.0 / 3.0]);
    assert_eq!(pool.counts(), counts(2, 0, 2));
    drop(a);
    expect(&*b, &[23.0 / 3.0]);
    b.reset();
    assert_eq!(pool.counts(), counts(0, 0, 4));
    push(&mut *b, &[3.0]);
    assert_eq!(b.read().v, array![[[[3.0]]]]); // nothing of what the page held before
}

#[test]
fn an_append_without_pages_is_refused_whole() {
    let pool = pool(3, 2);
    let mut cache = PagedCache::new(&pool, 2).unwrap();
    let x = |t| Array4::<f64>::ones((2, 1, t, 1));
    cache.append(&x(1), &x(1), &Append::default()).unwrap();
    cache.reorder(&[0, 0]).unwrap(); // one page for two rows
    assert_eq!(pool.counts(), counts(1, 1, 2));
    assert_eq!(code(cache.append(&x(4), &x(4), &Append::default())), "capacity_exceeded");
    assert_eq!((pool.counts(), cache.lengths()), (counts(1, 1, 2), array![1, 1]));
    cache.append(&x(1), &x(1), &Append::default()).unwrap(); // one copy; the last holder writes in place
    assert_eq!(pool.counts(), counts(2, 0, 1));
    assert_eq!(code(cache.reorder(&[0])), "shape_mismatch");
    assert_eq!(code(cache.reorder(&[0, 2])), "invalid_config");
}

#[test]
fn a_count_of_0_writes_nothing() {
    let pool = pool(2, 4); // no slot stands for a row that has none
    let mut cache = PagedCache::new(&pool, 3).unwrap();
    let v = array![[[[5.0]]], [[[6.0]]], [[[7.0]]]];
    let lengths = array![1, 0, 0];
    let one = Append { lengths: Some(&lengths), ..Append::default() };
    cache.append(&v, &v, &one).unwrap();
    assert_eq!(pool.counts(), counts(1, 0, 1));
    assert_eq!(cache.read().v.as_slice().unwrap(), [5.0, 0.0, 0.0]);
}

#[test]
fn rows_with_the_same_beginning_share_pages() {
    let pool = pool(12, 2);
    let mut cache = PagedCache::new(&pool, 3).unwrap();
    let (v, tokens) = (
        Array4::from_shape_fn((3, 1, 4, 1), |(_, _, t, _)| t as f64),
        array![[7, 8, 9, 9], [7, 8, 9, 1], [7, 1, 9, 9]],
    );
    let known = Append { tokens: Some(&tokens), ..Append::default() };
    cache.append(&v, &v, &known).unwrap();
    assert_eq!(pool.counts(), counts(5, 1, 7)); // the first page of two rows
    let mut other = PagedCache::new(&pool, 3).unwrap();
    other.append(&v, &v, &known).unwrap();
    assert_eq!(pool.counts(), counts(5, 5, 7));
    cache.truncate(&[1, 0, 0]).unwrap();
    assert_eq!(pool.counts(), counts(5, 1, 7)); // the page of [7, 8], by three rows
    cache.append(&v, &v, &Append { lengths: Some(&array![1, 0, 0]), ..Append::default() }).unwrap();
    assert_eq!((pool.counts(), other.read().v == v), (counts(6, 1, 6), true));
    assert_eq!(
        code(KvCache::new(3, 1, 1, 1, None).unwrap().append(&v, &v, &known)),
        "invalid_config"
    );
}

#[test]
fn scales_of_keys_and_values_are_kept_apart() {
    // Scores 0 and ln 2 weigh the values 3 and 6 by 1/3 and 2/3; keys have another scale than values.
    let int8 = Quantisation { format: Format::Int8, group: None, zero_point: false };
    let mut cache = QuantisedCache::new(1, 1, 1, 1, int8, None).unwrap();
    let k = column::<f64>(&[0.0, 2.0_f64.ln()]);
    let v = column::<f64>(&[3.0, 6.0]);
    cache.append(&k, &v, &Append::default()).unwrap();
    let q = Array4::<f64>::ones((1, 1, 1, 1));
    let output = cache.attend(&q, &Sdpa::default()).unwrap();
    // In units of 2^-24: the value of 5 is off by 2 times 5, for its scales and their products are rounded, the score
    // of ln 2 by 3 times that, and the output by 2/3 of it; f64 adds next to nothing.
    let room = (2.0 * 5.0 + 3.0 * 2.0_f64.ln() * 2.0 / 3.0 + 0.1) * 2.0_f64.powi(-24);
    assert!((output[[0, 0, 0, 0]] - 5.0).abs() <= room, "{output}");
    let [keys, values] = cache.read_codes().unwrap();
    assert_eq!((keys.codes.as_slice().unwrap(), values.codes[[0, 0, 1, 0]]), (&[0, 127][..], 127));
    assert_eq!(cache.stats().bytes, 2 * 2 * (1 + 4));

    let before = cache.read();
    let bad = column::<f64>(&[1.0, f64::NAN]);
    assert_eq!(code(cache.append(&bad, &v, &Append::default())), "invalid_config");
    assert_eq!(cache.read(), before);
    let first = Append { lengths: Some(&array![1]), ..Append::default() };
    cache.append(&bad, &v, &first).unwrap(); // NaN is junk here
}

#[test]
fn a_cache_turns_keys_once() {
    // RopePosition: the new token at position 2, and no key turned twice.
    let mut cache =
        KvCache::<f64>::new(1, 1, 2, 1, None).unwrap().with_rope(Rope::default()).unwrap();
    for value in [1.0, 2.0, 4.0] {
        cache.append(&rows(&[[1.0, 0.0]]), &column(&[value]), &Append::default()).unwrap();
    }
    let options = Sdpa { scale: Some(1.0), ..causal() };
    let steps = cache.attend_steps(&rows(&[[1.0, 0.0]]), &options).unwrap();
    // In units of 2^-53: four sines and cosines, each off by 1, two products and a sum make a score, and its own cosine
    // is off by 1: 8. Values of one sign; exp, sums and a quotient add 16 to what twice the 8 make of the output.
    let cosines = [2.0_f64, 1.0, 0.0].map(f64::cos);
    for (score, cosine) in steps.scores.iter().zip(cosines) {
        assert!((score - cosine).abs() <= 4.0 * f64::EPSILON);
    }
    let [a, b, c] = cosines.map(f64::exp);
    let want = (a + 2.0 * b + 4.0 * c) / (a + b + c); // 2.937 694
    assert!((steps.output[[0, 0, 0, 0]] - want).abs() <= 16.0 * f64::EPSILON * want);

    let dynamic = RopeScaling::Dynamic { factor: 2.0, original_length: 4, length: None };
    let rope = Rope { scaling: Some(dynamic), ..Rope::default() };
    let fresh = || KvCache::<f64>::new(1, 1, 2, 1, None).unwrap();
    assert_eq!(code(fresh().with_rope(rope)), "invalid_config");
    assert_eq!(code(fresh().with_rope(Rope { offset: 1, ..Rope::default() })), "invalid_config");
}

#[test]
fn evicted_slots_leave_gaps_that_a_shift_closes() {
    let mut cache = KvCache::new(1, 1, 1, 1, None).unwrap();
    push(&mut cache, &[1.0, 2.0, 4.0, 8.0]);
    cache.evict(&[1, 3, 9]).unwrap();
    assert_eq!(cache.read().positions, array![[0, 2]]);
    expect(&cache, &[2.5]); // the query stands at 3
    push(&mut cache, &[16.0]);
    assert_eq!(cache.read().positions, array![[0, 2, 4]]);
    for (by, from) in [(-3, 2), (-2, 2), (-1, 0), (1, i64::MAX), (i64::MAX, 1), (-2, 3)] {
        let good = from == i64::MAX; // nothing there to move
        assert_eq!(code(cache.shift(by, from)), if good { "ok" } else { "invalid_config" });
    }
    cache.shift(-1, 1).unwrap();
    assert_eq!((cache.read().positions, cache.rows().next()), (array![[0, 1, 3]], array![4]));
    cache.truncate(&[2]).unwrap();
    assert_eq!(cache.rows().next(), array![2]);
}

#[test]
fn shifts_of_rotated_keys_add_up() {
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_length: 8,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: Some(1.5),
        truncate: true,
    };
    let rope = Rope { scaling: Some(yarn), ..Rope::default() };
    let cache = || KvCache::<f64>::new(1, 1, 2, 1, None).unwrap().with_rope(rope.clone()).unwrap();
    let (k, v) = (rows(&[[1.0, 0.5], [0.25, -1.0], [0.5, 2.0]]), column(&[1.0, 2.0, 4.0]));
    let mut shifted = cache();
    shifted.append(&k, &v, &Append::default()).unwrap();
    shifted.evict(&[0]).unwrap();
    shifted.shift(3, 0).unwrap();
    shifted.shift(-4, 0).unwrap();
    let mut straight = cache();
    straight
        .append(&k.slice(s![.., .., 1.., ..]), &v.slice(s![.., .., 1.., ..]), &Append::default())
        .unwrap();
    let (got, want) = (shifted.read(), straight.read());
    assert_eq!(got.positions, want.positions);
    // Three turns on one side and one on the other, of pairs up to 3.1 long: angles are whole, and sines, products and
    // sums are off by less than 5.3 units of 2^-53 of that length in a turn.
    let room = 4.0 * 5.3 * 3.1 * 2.0_f64.powi(-53);
    assert!(got.k.iter().zip(&want.k).all(|(x, y)| (x - y).abs() <= room));
}

#[test]
fn a_cross_cache_is_written_once() {
    let mut cache = CrossCache::<f64>::new(2, 1, 1, 1).unwrap();
    let v = array![[[[1.0], [3.0]]], [[[5.0], [9.0]]]];
    let lengths = array![2, 1];
    let left = Append { lengths: Some(&lengths), padding: Padding::Left, ..Append::default() };
    cache.append(&v, &v, &left).unwrap();
    assert_eq!(code(cache.append(&v, &v, &left)), "invalid_config");
    assert_eq!(code(cache.truncate(&[0, 0])), "invalid_config");
    let q = Array4::zeros((2, 1, 1, 1));
    assert_eq!(cache.attend(&q, &Sdpa::default()).unwrap().as_slice().unwrap(), [2.0, 9.0]);
    cache.reorder(&[1, 1]).unwrap();
    assert_eq!(cache.attend(&q, &Sdpa::default()).unwrap().as_slice().unwrap(), [9.0, 9.0]);
    assert_eq!(code(cache.attend(&q, &causal())), "invalid_config");
    let window = Mask { window: Some((None, None)), ..Mask::default() };
    assert_eq!(code(cache.attend(&q, &Sdpa { mask: window, ..Sdpa::default() })), "invalid_config");
    cache.reset();
    cache.append(&v, &v, &Append::default()).unwrap();
    assert_eq!(code(cache.evict(&[0])), "unsupported");
}

#[test]
fn bytes_of_the_formats() {
    let bytes = |format, group, zero_point| {
        let quantisation = Quantisation { format, group, zero_point };
        let mut cache = QuantisedCache::new(1, 2, 64, 64, quantisation, None).unwrap();
        let x = Array4::from_elem((1, 2, 3, 64), f16::ONE);
        cache.append(&x, &x, &Append::default()).unwrap();
        cache.stats().bytes
    };
    let plain = 2 * 2 * 3 * 64 * 4; // of f32
    assert_eq!(bytes(Format::Bf16, None, false), plain / 2);
    assert!(bytes(Format::Int8, None, false) as f64 <= 0.27 * plain as f64);
    assert!(bytes(Format::Int4, None, false) as f64 <= 0.16 * plain as f64);
    assert_eq!(bytes(Format::Int4, Some(32), true), 2 * 2 * 3 * (32 + 4 * 2 * 2));
}

#[test]
fn config_faults() {
    assert_eq!(code(RotatingCache::<f32>::new(1, 1, 1, 1, 0, 0)), "invalid_config");
    for (batch, latent, rope, capacity) in [
        (1, 0, 1, None),
        (1 << 54, 1, 0, None),
        (1, 1 << 53, 1, None),
        (1, usize::MAX, usize::MAX, None),
        (2, 2, 2, Some(1 << 51)),
        (1, 1, 1, Some(usize::MAX)),
    ] {
        let made = LatentCache::<f32>::new(batch, latent, rope, capacity);
        assert_eq!(code(made), "invalid_config");
    }
    let sizes =
        PageSizes { num_pages: 0, page_size: 0, num_kv_heads: 1, head_dim: 1, value_dim: 1 };
    assert_eq!(code(PagePool::<f32>::new(sizes)), "invalid_config");
    let wrong = Quantisation { format: Format::Fp8E4m3, group: None, zero_point: true };
    assert_eq!(code(QuantisedCache::<f32>::new(1, 1, 1, 1, wrong, None)), "invalid_config");
}

/// Fewer numbers than 2^53, more than a machine can have.
#[test]
fn what_no_memory_holds_is_refused() {
    const HUGE: usize = 1_000_000_000_000_000;
    let int8 = Quantisation { format: Format::Int8, group: None, zero_point: false };
    assert_eq!(code(KvCache::<f32>::new(1, 1, 1, 0, Some(HUGE))), "invalid_config");
    assert_eq!(code(KvCache::<f32>::new(HUGE, 1, 1, 1, None)), "invalid_config");
    assert_eq!(code(RotatingCache::<f32>::new(HUGE, 1, 1, 1, 2, 0)), "invalid_config");
    assert_eq!(code(CrossCache::<f32>::new(HUGE, 1, 1, 1)), "invalid_config");
    assert_eq!(code(LatentCache::<f32>::new(1, 1, 1, Some(HUGE))), "invalid_config");
    assert_eq!(code(LatentCache::<f32>::new(HUGE, 1, 1, None)), "invalid_config");
    assert_eq!(code(QuantisedCache::<f32>::new(1, 1, 1, 1, int8, Some(HUGE))), "invalid_config");
    assert_eq!(code(QuantisedCache::<f32>::new(HUGE, 1, 1, 1, int8, None)), "invalid_config");
    assert_eq!(code(PagedCache::new(&pool(1, 1), HUGE)), "invalid_config");
    let sizes =
        PageSizes { num_pages: 1, page_size: HUGE, num_kv_heads: 1, head_dim: 1, value_dim: 1 };
    assert_eq!(code(PagePool::<f32>::new(sizes)), "invalid_config");
    assert!(PagePool::<f32>::new(PageSizes { num_pages: HUGE, page_size: 1, ..sizes }).is_ok());
}

#[test]
fn an_append_that_no_memory_holds_changes_nothing() {
    let one = Array4::<f64>::ones((1, 1, 1, 1));
    let far = one.broadcast((1, 1, 1_000_000_000_000_000, 1)).unwrap(); // one number in memory
    let (mut contiguous, mut rotating, mut cross) = (
        KvCache::new(1, 1, 1, 1, None).unwrap(),
        RotatingCache::new(1, 1, 1, 1, 2, 0).unwrap(),
        CrossCache::new(1, 1, 1, 1).unwrap(),
    );
    for cache in [&mut contiguous as &mut dyn Cache<f64>, &mut rotating] {
        cache.append(&one, &one, &Append::default()).unwrap();
        assert_eq!(code(cache.append(&far, &far, &Append::default())), "capacity_exceeded");
        assert_eq!(cache.read().v, one);
    }
    assert_eq!(code(cross.append(&far, &far, &Append::default())), "capacity_exceeded");
    cross.append(&one, &one, &Append::default()).unwrap();
    assert_eq!(cross.read().v, one);
}
