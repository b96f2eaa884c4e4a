//! What must hold for all kinds of caches, on random scripts.

use std::fs;

use crate::common::{causal, same, signed};
use ndarray::{Array1, Array2, Array4, Axis, array, concatenate, s};
use proptest::collection::vec;
use proptest::prelude::*;
use rosetta_attention::{
    Append, Cache, CrossCache, Format, Held, KiviCache, KvCache, LatentCache, Mask, Offset,
    Padding, PagePool, PageSizes, PagedCache, PerHeadCache, Quantisation, QuantisedCache, Rope,
    RopeAt, RotatingCache, Sdpa, load, quantise, restore, save, sdpa,
};

const BATCH: usize = 2;
const HEADS: usize = 2;
const D: usize = 4;
const DV: usize = 3;
const WINDOW: usize = 3;
const KEEP: usize = 1;

type Any = Box<dyn Cache<f32>>;

const INT8: Quantisation = Quantisation { format: Format::Int8, group: Some(3), zero_point: true };

/// A cache of every kind that knows append, truncate and reorder; with a rope, if it can have one.
fn caches(turn: bool) -> Vec<Any> {
    let rope = Rope::default;
    let sizes =
        PageSizes { num_pages: 64, page_size: 2, num_kv_heads: HEADS, head_dim: D, value_dim: DV };
    let contiguous = KvCache::new(BATCH, HEADS, D, DV, None).unwrap();
    let rotating = RotatingCache::new(BATCH, HEADS, D, DV, WINDOW, KEEP).unwrap();
    let paged = PagedCache::new(&PagePool::new(sizes).unwrap(), BATCH).unwrap();
    let quantised = QuantisedCache::new(BATCH, HEADS, D, DV, INT8, None).unwrap();
    if !turn {
        return vec![
            Box::new(contiguous),
            Box::new(rotating),
            Box::new(paged),
            Box::new(quantised),
        ];
    }
    vec![
        Box::new(contiguous.with_rope(rope()).unwrap()),
        Box::new(rotating.with_rope(rope()).unwrap()),
        Box::new(paged.with_rope(rope()).unwrap()),
        Box::new(quantised.with_rope(rope()).unwrap()),
    ]
}

/// Those, and what attends to groups of keys, by head, or with a trace.
fn every_cache(turn: bool) -> Vec<Any> {
    let contiguous = KvCache::new(BATCH, HEADS, D, DV, None).unwrap().with_track().unwrap();
    let per_head = PerHeadCache::new(BATCH, HEADS, D, DV, None).unwrap().with_track().unwrap();
    let int4 = Quantisation { format: Format::Int4, group: None, zero_point: true };
    let kivi = KiviCache::new(BATCH, HEADS, D, DV, int4, 2, None).unwrap().with_track().unwrap();
    let int8 = Quantisation { group: None, zero_point: false, ..INT8 };
    let quantised = QuantisedCache::new(BATCH, HEADS, D, DV, int8, None).unwrap();
    let quantised = quantised.with_track().unwrap();
    let more: Vec<Any> = if turn {
        let (rope, at) = (Rope::default, RopeAt::Attend);
        vec![
            Box::new(contiguous.with_rope_at(rope(), at).unwrap()),
            Box::new(per_head.with_rope(rope()).unwrap()),
            Box::new(quantised.with_rope_at(rope(), at).unwrap()),
            Box::new(kivi.with_rope(rope()).unwrap()),
        ]
    } else {
        vec![Box::new(contiguous), Box::new(per_head), Box::new(quantised), Box::new(kivi)]
    };
    caches(turn).into_iter().chain(more).collect()
}

#[derive(Debug, Clone)]
enum Step {
    Append { lengths: [usize; BATCH], left: bool, tokens: bool },
    Truncate(u8),
    Reorder([i64; BATCH]),
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let append = ([0..4_usize, 0..4_usize], any::<(bool, bool)>());
    let append =
        append.prop_map(|(lengths, (left, tokens))| Step::Append { lengths, left, tokens });
    let step = prop_oneof![
        6 => append,
        1 => any::<u8>().prop_map(Step::Truncate),
        1 => [0..BATCH as i64, 0..BATCH as i64].prop_map(Step::Reorder),
        1 => Just(Step::Reset),
    ];
    vec(step, 1..12)
}

/// The step on a cache: what an append, which is of so many tokens that it has junk, is followed by.
fn apply(cache: &mut dyn Cache<f32>, step: &Step, seed: u64) -> Option<Array4<f32>> {
    let number = seed + 1;
    match step {
        Step::Append { lengths, left, tokens } => {
            let most = *lengths.iter().max().unwrap() + 1;
            let counts = Array1::from_iter(lengths.map(|n| n as i64));
            let padding = if *left { Padding::Left } else { Padding::Right };
            let known = Array2::from_elem((BATCH, most), 7);
            let with = *tokens && cache.describe().0.iter().any(|(_, value)| value == "paged");
            let options =
                Append { lengths: Some(&counts), padding, tokens: with.then_some(&*known) };
            let (k, v) = tensors(number, most);
            let q = signed((BATCH, 2 * HEADS, 2, D), 100 * number);
            let steps = cache.append_attend_steps((&k, &v), &options, &q, &causal()).unwrap();
            return Some(steps.output);
        }
        Step::Truncate(by) => {
            let lengths: Vec<i64> =
                cache.lengths().iter().map(|&n| (n - i64::from(by % 3)).max(0)).collect();
            let _ = cache.truncate(&lengths); // a rotating cache may refuse
        }
        Step::Reorder(index) => cache.reorder(index).unwrap(),
        Step::Reset => cache.reset(),
    }
    None
}

fn tensors(seed: u64, len: usize) -> (Array4<f32>, Array4<f32>) {
    (signed((BATCH, HEADS, len, D), 10 * seed), signed((BATCH, HEADS, len, DV), 10 * seed + 1))
}

fn run(cache: &mut dyn Cache<f32>, script: &[Step]) -> Vec<Option<Array4<f32>>> {
    script.iter().enumerate().map(|(n, step)| apply(cache, step, n as u64)).collect()
}

fn equal(a: &Held<f32>, b: &Held<f32>) -> bool {
    same(&a.k, &b.k) && same(&a.v, &b.v) && (&a.lengths, &a.positions) == (&b.lengths, &b.positions)
}

fn alike(a: &[Option<Array4<f32>>], b: &[Option<Array4<f32>>]) -> bool {
    a.iter().zip(b).all(|(a, b)| match (a, b) {
        (Some(a), Some(b)) => same(a, b),
        (a, b) => a.is_none() && b.is_none(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn paged_equals_contiguous(script in steps(), turn: bool) {
        let mut all = caches(turn);
        let (contiguous, paged) = (run(&mut *all[0], &script), run(&mut *all[2], &script));
        prop_assert!(alike(&contiguous, &paged) && equal(&all[0].read(), &all[2].read()));
    }

    #[test]
    fn any_chunks_equal_the_whole(cuts in vec(1..5_usize, 1..6), turn: bool) {
        let len: usize = cuts.iter().sum();
        let (k, v) = tensors(1, len);
        let q = signed((BATCH, 2 * HEADS, len, D), 5);
        for (mut pieces, mut whole) in caches(turn).into_iter().zip(caches(turn)) {
            let options = Append::default();
            let all = whole.append_attend_steps((&k, &v), &options, &q, &causal()).unwrap().output;
            let mut start = 0;
            for cut in &cuts {
                let at = s![.., .., start..start + cut, ..];
                let (k, v, q) = (k.slice(at), v.slice(at), q.slice(at));
                let steps = pieces.append_attend_steps((&k, &v), &options, &q, &causal()).unwrap();
                prop_assert!(same(&steps.output, all.slice(at)), "{:?}", pieces.describe());
                start += cut;
            }
        }
    }

    #[test]
    fn rotating_equals_contiguous_with_the_mask(cuts in vec(1..7_usize, 1..5)) {
        let len: usize = cuts.iter().sum();
        let (k, v) = tensors(1, len);
        let q = signed((BATCH, 2 * HEADS, len, D), 5);
        let keep = Array2::from_shape_fn((len, len), |(p, j)| j <= p && (p - j < WINDOW || j < KEEP));
        let keep = keep.into_dyn();
        let mask = Mask { keep: Some(&keep), ..Mask::default() };
        let whole = sdpa(&q, &k, &v, &Sdpa { mask, ..Sdpa::default() }).unwrap();
        let mut cache = RotatingCache::new(BATCH, HEADS, D, DV, WINDOW, KEEP).unwrap();
        let mut start = 0;
        for cut in cuts {
            let at = s![.., .., start..start + cut, ..];
            cache.append(&k.slice(at), &v.slice(at), &Append::default()).unwrap();
            let output = cache.attend(&q.slice(at), &Sdpa::default()).unwrap();
            prop_assert!(same(&output, whole.slice(at)));
            start += cut;
            prop_assert!(cache.rows().longest() <= KEEP + WINDOW - 1 + cut);
        }
    }

    #[test]
    fn quantised_equals_contiguous_on_restored_values(len in 0..6_usize, which in 0..5_usize, zero_point: bool) {
        let format = Format::ALL[which];
        let zero_point = zero_point && matches!(format, Format::Int8 | Format::Int4);
        let quantisation = Quantisation { format, group: Some(3), zero_point };
        let (k, v) = tensors(3, len);
        let q = signed((BATCH, 2 * HEADS, 2, D), 5);
        let mut cache = QuantisedCache::new(BATCH, HEADS, D, DV, quantisation, None).unwrap();
        cache.append(&k, &v, &Append::default()).unwrap();
        let back = |x: &Array4<f32>| restore(&quantise(x, quantisation).unwrap()).unwrap();
        let (k, v) = (back(&k), back(&v));
        let held = cache.read();
        prop_assert!(same(&held.k, &k) && same(&held.v, &v));
        let start = Mask { causal: true, q_offset: Some(Offset::One(len as i64 - 2)), ..Mask::default() };
        let plain = sdpa(&q, &k, &v, &Sdpa { mask: start, ..Sdpa::default() }).unwrap();
        prop_assert!(same(&cache.attend(&q, &causal()).unwrap(), &plain));
    }

    #[test]
    fn latent_equals_contiguous_with_one_head(lens in vec(0..4_usize, 1..5)) {
        let (r, dr) = (3, 2);
        let mut latent = LatentCache::<f32>::new(BATCH, r, dr, None).unwrap();
        let mut plain = KvCache::<f32>::new(BATCH, 1, r + dr, r, None).unwrap();
        for (seed, len) in (1..).zip(lens) {
            let (c, key) = (signed((BATCH, 1, len, r), seed), signed((BATCH, 1, len, dr), 50 + seed));
            let k = concatenate![Axis(3), c, key];
            latent.append(&c, &key, &Append::default()).unwrap();
            plain.append(&k, &c, &Append::default()).unwrap();
            let q = signed((BATCH, 4, 2, r + dr), 90 + seed);
            prop_assert!(same(&latent.attend(&q, &causal()).unwrap(), &plain.attend(&q, &causal()).unwrap()));
        }
        prop_assert!(same(&latent.read().k, &plain.read().v));
    }

    #[test]
    fn a_reset_cache_is_a_new_one(script in steps(), turn: bool) {
        for mut cache in every_cache(turn) {
            let first = run(&mut *cache, &script);
            let held = cache.read();
            cache.reset();
            prop_assert!(alike(&first, &run(&mut *cache, &script)) && equal(&held, &cache.read()));
        }
    }

    #[test]
    fn a_fork_changes_nothing_in_its_origin(before in steps(), after in steps(), turn: bool) {
        for (mut cache, mut alone) in every_cache(turn).into_iter().zip(every_cache(turn)) {
            run(&mut *cache, &before);
            run(&mut *alone, &before);
            let (held, all, mut fork) = (cache.read(), cache.contents(), cache.fork());
            let with_fork = run(&mut *fork, &after);
            prop_assert!(equal(&held, &cache.read()) && all == cache.contents());
            prop_assert!(alike(&with_fork, &run(&mut *alone, &after)));
            prop_assert!(alike(&with_fork, &run(&mut *cache, &after)));
        }
    }

    #[test]
    fn rows_are_independent(script in steps()) {
        for (mut cache, mut other) in caches(false).into_iter().zip(caches(false)) {
            let alone: Vec<Step> = script.iter().filter_map(|step| match step {
                Step::Append { lengths, left, tokens } => {
                    Some(Step::Append { lengths: [lengths[0], lengths[0]], left: *left, tokens: *tokens })
                }
                _ => None,
            }).collect();
            let junk: Vec<Step> = script.iter().filter(|step| matches!(step, Step::Append { .. })).cloned().collect();
            // Only scripts whose longest count is that of row 0 give row 0 the same numbers.
            let same_numbers = junk.iter().all(|step| matches!(step, Step::Append { lengths, .. } if lengths[0] >= lengths[1]));
            prop_assume!(same_numbers);
            let (a, b) = (run(&mut *cache, &junk), run(&mut *other, &alone));
            for (a, b) in a.iter().flatten().zip(b.iter().flatten()) {
                prop_assert!(same(a.slice(s![0, .., .., ..]), b.slice(s![0, .., .., ..])));
            }
        }
    }

    #[test]
    fn a_call_that_fails_changes_nothing(script in steps()) {
        for mut cache in every_cache(true) {
            run(&mut *cache, &script);
            let (held, stats, rows) = (cache.contents(), cache.stats(), cache.rows().clone());
            let (k, v) = tensors(9, 2);
            let q = Array4::zeros((BATCH, 3, 1, D)); // no multiple of the heads
            let all = Append::default();
            prop_assert!(cache.append_attend_steps((&k, &v), &all, &q, &causal()).is_err());
            prop_assert!(cache.append(&v, &v, &all).is_err());
            let lengths = array![3, 0];
            let beyond = Append { lengths: Some(&lengths), ..all };
            prop_assert!(cache.append(&k, &v, &beyond).is_err());
            prop_assert!(cache.reorder(&[0, BATCH as i64]).is_err() && cache.truncate(&[-1, 0]).is_err());
            prop_assert!(held == cache.contents() && cache.stats() == stats && *cache.rows() == rows);
        }
    }

    #[test]
    fn a_loaded_cache_goes_on(before in steps(), after in steps(), turn: bool) {
        let folder = std::env::temp_dir().join(format!("rosetta-caches-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (kind, (mut cache, mut other)) in every_cache(turn).into_iter().zip(every_cache(turn)).enumerate() {
            let path = folder.join(format!("{kind}.safetensors"));
            run(&mut *cache, &before);
            run(&mut *other, &after);
            save(&*cache, &path).unwrap();
            load(&mut *other, &path).unwrap();
            prop_assert!(cache.contents() == other.contents() && cache.rows() == other.rows());
            prop_assert!(alike(&run(&mut *cache, &after), &run(&mut *other, &after)));
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn only_the_file_of_such_a_cache_is_loaded() {
    let folder = std::env::temp_dir().join(format!("rosetta-files-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("cache.safetensors");
    let (k, v) = tensors(1, 3);
    let mut cache = KvCache::<f32>::new(BATCH, HEADS, D, DV, None).unwrap();
    cache.append(&k, &v, &Append::default()).unwrap();
    save(&cache, &path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let held = cache.read();
    let code = |cache: &mut dyn Cache<f32>| {
        load(cache, &path).map_or_else(|error| error.code(), |()| "ok")
    };

    let mut empty = KvCache::new(BATCH, HEADS, D, DV, Some(2)).unwrap();
    assert_eq!(code(&mut empty), "capacity_exceeded");
    assert_eq!(code(&mut KvCache::new(BATCH, HEADS, D, D, None).unwrap()), "invalid_config");
    assert_eq!(code(&mut CrossCache::new(BATCH, HEADS, D, DV).unwrap()), "invalid_config");
    let turned = KvCache::new(BATCH, HEADS, D, DV, None).unwrap().with_rope(Rope::default());
    assert_eq!(code(&mut turned.unwrap()), "invalid_config");
    let wide = load(&mut KvCache::<f64>::new(BATCH, HEADS, D, DV, None).unwrap(), &path);
    assert_eq!(wide.unwrap_err().code(), "dtype_mismatch");
    let mut room = KvCache::new(BATCH, HEADS, D, DV, Some(3)).unwrap();
    assert_eq!(code(&mut room), "ok");

    for cut in [0, 7, 100, bytes.len() - 1] {
        fs::write(&path, &bytes[..cut]).unwrap();
        assert_eq!(code(&mut cache), "invalid_request");
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    for (from, to) in
        [("rosetta-kv-cache", "rosetta-kv-cachf"), ("\"k\"", "\"l\""), ("\"next\"", "\"nexd\"")]
    {
        assert!(text.contains(from));
        let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        let mut damaged = bytes.clone();
        damaged[at..at + to.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, damaged).unwrap();
        assert_eq!(code(&mut cache), "invalid_request", "{to}");
    }
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(code(&mut cache), "invalid_request");
    assert!(equal(&held, &cache.read()));
}
