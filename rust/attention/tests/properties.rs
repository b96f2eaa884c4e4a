//! What holds for all inputs: random sizes, every option on or off.

use crate::common::{self, same, signed};
use ndarray::{Array1, Array3, Array4, ArrayD, Axis, concatenate, s};
use proptest::prelude::*;
use rosetta_attention::{
    Append, Cache, Dropout, Float, KvCache, Mask, Offset, Sdpa, Window, sdpa_steps, visible,
};

/// A call with everything that it borrows.
#[derive(Debug, Clone)]
struct Problem {
    batch: usize,
    hkv: usize,
    group: usize,
    tq: usize,
    tk: usize,
    d: usize,
    dv: usize,
    seed: u64,
    causal: bool,
    window: Option<Window>,
    lengths: Option<Array1<i64>>,
    offsets: Option<Array1<i64>>,
    keep: Option<ArrayD<bool>>,
    with_bias: bool,
    softcap: Option<f64>,
    with_sinks: bool,
    dropout: Option<Dropout>,
}

/// Query, key, value, bias and sinks in one element type.
struct Tensors<T> {
    q: Array4<T>,
    k: Array4<T>,
    v: Array4<T>,
    bias: Option<ArrayD<T>>,
    sinks: Option<Array1<T>>,
}

impl Problem {
    fn tensors<T: Float>(&self) -> Tensors<T> {
        let hq = self.hkv * self.group;
        let mut bias = signed::<T>((self.batch, 1, self.tq, self.tk), self.seed + 3);
        let hidden = signed::<f64>(bias.dim(), self.seed + 4);
        bias.zip_mut_with(&hidden, |b, &x| {
            if x > 1.2 {
                *b = T::neg_infinity()
            }
        });
        Tensors {
            q: signed((self.batch, hq, self.tq, self.d), self.seed),
            k: signed((self.batch, self.hkv, self.tk, self.d), self.seed + 1),
            v: signed((self.batch, self.hkv, self.tk, self.dv), self.seed + 2),
            bias: self.with_bias.then(|| bias.into_dyn()),
            sinks: self
                .with_sinks
                .then(|| Array1::from_shape_fn(hq, |h| T::from_f64(h as f64 - 1.0))),
        }
    }

    /// (B, Hq, Tq, Tk)
    fn table(&self) -> (usize, usize, usize, usize) {
        (self.batch, self.hkv * self.group, self.tq, self.tk)
    }

    fn mask(&self) -> Mask<'_> {
        Mask {
            keep: self.keep.as_deref(),
            causal: self.causal,
            window: self.window,
            kv_lengths: self.lengths.as_deref(),
            q_offset: self.offsets.as_deref().map(Offset::PerRow),
        }
    }

    fn options<'a, T: Float>(&'a self, tensors: &'a Tensors<T>) -> Sdpa<'a, T> {
        Sdpa {
            mask: self.mask(),
            bias: tensors.bias.as_deref(),
            scale: None,
            softcap: self.softcap,
            sinks: tensors.sinks.as_deref(),
            dropout: self.dropout,
        }
    }
}

/// Sizes on both sides of the widths of registers and tiles.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![1..9_usize, 15..18_usize, 31..34_usize, 60..70_usize]
}

prop_compose! {
    fn problem()(
        (batch, hkv, group) in (1..3_usize, 1..3_usize, 1..4_usize),
        (tq, tk, d, dv) in (size(), size(), size(), size()),
        seed in 0..1_000_000_u64,
        (causal, with_bias, with_sinks) in any::<(bool, bool, bool)>(),
        window in proptest::option::of((proptest::option::of(0..20_usize), proptest::option::of(0..20_usize))),
        softcap in proptest::option::of(0.5..5.0_f64),
        (with_lengths, with_offsets, with_keep) in any::<(bool, bool, bool)>(),
        dropped in proptest::option::of(0.0..0.9_f64),
    ) -> Problem {
        // Per row: a length up to Tk, an offset on both sides of 0; three slots in four are kept.
        let pick = |row: usize, n: usize| ((seed as usize + 7 * row) % n) as i64;
        let lengths = Array1::from_shape_fn(batch, |b| pick(b, tk + 1));
        let offsets = Array1::from_shape_fn(batch, |b| pick(b, 2 * tk) - tk as i64 / 2);
        let keep = signed::<f64>((batch, hkv * group, tq, tk), seed + 9).mapv(|x| x < 1.0);
        Problem {
            batch, hkv, group, tq, tk, d, dv, seed, causal, window, with_bias, softcap, with_sinks,
            lengths: with_lengths.then_some(lengths),
            offsets: with_offsets.then_some(offsets),
            keep: with_keep.then(|| keep.into_dyn()),
            dropout: dropped.map(|p| Dropout { p, seed }),
        }
    }
}

/// Output and lse of every rung, the readable one first.
fn rungs<T: Float>(t: &Tensors<T>, options: &Sdpa<'_, T>) -> Vec<(Array4<T>, Array3<T>)> {
    common::rungs(&t.q, &t.k, &t.v, options)
        .into_iter()
        .map(|(_, output, lse)| (output, lse))
        .collect()
}

/// Those rungs whose order of sums does not go by the number of queries that share a KV head. That of the tiers does:
/// few queries go through a kernel of their own. Each is near the readable rung by `rungs_agree`, whatever that number
/// is, and `simd.rs` holds a query to the same bits where it stays the same.
fn rungs_of_one_order<T: Float>(
    t: &Tensors<T>,
    options: &Sdpa<'_, T>,
) -> Vec<(Array4<T>, Array3<T>)> {
    let is_tier = |name: &str| common::tiers().any(|tier| tier.to_string() == name);
    common::rungs(&t.q, &t.k, &t.v, options)
        .into_iter()
        .filter(|(name, ..)| !is_tier(name))
        .map(|(_, output, lse)| (output, lse))
        .collect()
}

/// Every other rung against the readable one. Both are within the forward error bound of the exact result,
/// so they are within twice that bound of each other:
///
/// - a score, a sum of D products and one scaling: e = (D + 2)·u·Σ|scale·q·k|, and 8·u of what softcap
///   and bias make of it;
/// - a weight, relative: exp(2·e) - 1 with the largest e of the row, 8·u for exp and division;
/// - a rung that rescales does so once a key at most: 3·u each, for exp and product, in output and lse;
/// - the output, a sum over Tk: ((Tk + 1)·u and twice the above) · Σ w·|v|, the survivors of dropout larger;
/// - lse: e, a sum over Tk, and 2·u of itself.
fn rungs_agree<T: Float>(problem: &Problem) {
    let t = problem.tensors::<T>();
    let options = problem.options(&t);
    let naive = sdpa_steps(&t.q, &t.k, &t.v, &options).unwrap();
    let number = |x: T| x.to_f64().unwrap();
    let u = number(T::epsilon()) / 2.0;
    let scale = 1.0 / (problem.d as f64).sqrt();
    let sums = (4.0 * problem.tk as f64 + 1.0) * u;
    let larger = problem.dropout.map_or(1.0, |dropout| 1.0 / (1.0 - dropout.p));
    for (rung, output, lse) in common::rungs(&t.q, &t.k, &t.v, &options) {
        for ((b, h, i), &want) in naive.lse.indexed_iter() {
            let kv = h / problem.group;
            let (q, k, v) = (
                t.q.slice(s![b, h, i, ..]),
                t.k.slice(s![b, kv, .., ..]),
                t.v.slice(s![b, kv, .., ..]),
            );
            let weights = naive.weights.slice(s![b, h, i, ..]);
            let biased = naive.biased.slice(s![b, h, i, ..]);
            let e = (0..problem.tk)
                .filter(|&j| biased[j] != T::neg_infinity())
                .map(|j| {
                    let size: f64 =
                        q.iter().zip(k.row(j)).map(|(&q, &k)| number(q * k).abs()).sum();
                    (problem.d as f64 + 2.0) * u * size * scale + 8.0 * u * number(biased[j]).abs()
                })
                .fold(0.0, f64::max);

            let (got, want) = (number(lse[[b, h, i]]), number(want));
            let room = 2.0 * (e + sums + 8.0 * u + 2.0 * u * want.abs());
            assert!(got == want || (got - want).abs() <= room, "{rung} lse: {got} and {want}");
            for c in 0..problem.dv {
                let size: f64 =
                    weights.iter().zip(v.column(c)).map(|(&w, &v)| number(w * v).abs()).sum();
                let (got, want) =
                    (number(output[[b, h, i, c]]), number(naive.output[[b, h, i, c]]));
                let room =
                    2.0 * size * larger * (2.0 * ((2.0 * e).exp_m1() + 8.0 * u) + 2.0 * sums);
                assert!((got - want).abs() <= room, "{rung}: {got} and {want}, {room}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_rung_agrees_with_the_readable_one(problem in problem()) {
        rungs_agree::<f32>(&problem);
        rungs_agree::<f64>(&problem);
    }

    #[test]
    fn poison_reaches_only_those_who_see_it(problem in problem(), slot in any::<prop::sample::Index>()) {
        let clean = problem.tensors::<f32>();
        let options = problem.options(&clean);
        let mut poisoned = problem.tensors::<f32>();
        let (j, kv) = (slot.index(problem.tk), problem.hkv - 1);
        poisoned.k.slice_mut(s![.., kv, j, ..]).fill(f32::NAN);
        poisoned.v.slice_mut(s![.., kv, j, ..]).fill(f32::INFINITY);
        let mut shown = visible(&problem.mask(), problem.table()).unwrap();
        if let Some(bias) = &clean.bias {
            shown.zip_mut_with(&bias.broadcast(problem.table()).unwrap(), |s, &b| *s &= b != f32::NEG_INFINITY);
        }
        for (before, after) in rungs(&clean, &options).iter().zip(rungs(&poisoned, &options)) {
            for ((b, h, i), &lse) in after.1.indexed_iter() {
                let (want, got) = (before.0.slice(s![b, h, i, ..]), after.0.slice(s![b, h, i, ..]));
                if h / problem.group == kv && shown[[b, h, i, j]] {
                    prop_assert!(lse.is_nan() && got.iter().all(|x| x.is_nan()));
                } else {
                    prop_assert!(same([&lse], [&before.1[[b, h, i]]]) && same(got, want));
                }
            }
        }
    }

    #[test]
    fn groups_equal_repeated_heads(problem in problem()) {
        let few = problem.tensors::<f32>();
        let options = problem.options(&few);
        let repeat = |x: &Array4<f32>| {
            let heads: Vec<_> = (0..problem.hkv * problem.group)
                .map(|h| x.slice(s![.., h / problem.group..=h / problem.group, .., ..]))
                .collect();
            concatenate(Axis(1), &heads).unwrap()
        };
        let many = Tensors { k: repeat(&few.k), v: repeat(&few.v), ..problem.tensors() };
        for (one, other) in
            rungs_of_one_order(&few, &options).iter().zip(rungs_of_one_order(&many, &options))
        {
            prop_assert!(same(&one.0, &other.0) && same(&one.1, &other.1));
        }
    }

    #[test]
    fn rows_and_queries_are_independent(problem in problem(), at in any::<(prop::sample::Index, prop::sample::Index)>()) {
        let problem = Problem { dropout: None, ..problem }; // it goes by the place of a slot in the whole
        let all = problem.tensors::<f32>();
        let (b, i) = (at.0.index(problem.batch), at.1.index(problem.tq));
        let keep = problem.keep.as_ref().map(|keep| keep.slice(s![b..=b, .., i..=i, ..]).to_owned().into_dyn());
        let offset = problem.offsets.as_ref().map_or(0, |offsets| offsets[b]) + i as i64;
        let alone = Problem {
            batch: 1,
            tq: 1,
            keep,
            lengths: problem.lengths.as_ref().map(|lengths| lengths.slice(s![b..=b]).to_owned()),
            offsets: Some(Array1::from_elem(1, offset)),
            ..problem.clone()
        };
        let one = Tensors {
            q: all.q.slice(s![b..=b, .., i..=i, ..]).to_owned(),
            k: all.k.slice(s![b..=b, .., .., ..]).to_owned(),
            v: all.v.slice(s![b..=b, .., .., ..]).to_owned(),
            bias: all.bias.as_ref().map(|bias| bias.slice(s![b..=b, .., i..=i, ..]).to_owned().into_dyn()),
            sinks: all.sinks.clone(),
        };
        let whole = rungs_of_one_order(&all, &problem.options(&all));
        for (whole, one) in whole.iter().zip(rungs_of_one_order(&one, &alone.options(&one))) {
            prop_assert!(same(whole.0.slice(s![b..=b, .., i..=i, ..]), &one.0));
            prop_assert!(same(whole.1.slice(s![b..=b, .., i..=i]), &one.1));
        }
    }

    #[test]
    fn any_chunks_equal_the_whole(problem in problem(), cuts in proptest::collection::vec(1..12_usize, 0..6)) {
        let tk = problem.tk;
        let problem = Problem { tq: tk, causal: true, offsets: None, lengths: None, keep: None, with_bias: false, dropout: None, ..problem };
        let t = problem.tensors::<f32>();
        let options = problem.options(&t);
        let whole = sdpa_steps(&t.q, &t.k, &t.v, &options).unwrap();
        let capacity = problem.seed.is_multiple_of(2).then_some(tk);
        let mut cache = KvCache::new(problem.batch, problem.hkv, problem.d, problem.dv, capacity).unwrap();
        let mut start = 0;
        for cut in cuts.into_iter().chain([tk]) {
            let end = tk.min(start + cut);
            let at = s![.., .., start..end, ..];
            cache.append(&t.k.slice(at), &t.v.slice(at), &Append::default()).unwrap();
            let steps = cache.attend_steps(&t.q.slice(at), &options).unwrap();
            prop_assert!(same(&steps.output, whole.output.slice(at)));
            prop_assert!(same(&steps.lse, whole.lse.slice(s![.., .., start..end])));
            start = end;
        }
    }
}
