//! Sparse attention: each pattern by hand, its list of keys against its condition, and sdpa with its mask.

use crate::common::{column, same, signed};
use ndarray::{Array2, Array4, ArrayRef2, array, s};
use proptest::prelude::*;
use rosetta_attention::{
    Mask, Pattern, Sdpa, philox_words, sdpa_steps, sparse, sparse_mask, sparse_steps,
};

/// The keys of each query, by the condition.
fn seen(pattern: &Pattern<'_>, tq: usize, tk: usize) -> Vec<Vec<usize>> {
    let table = sparse_mask(pattern, tq, tk, false).unwrap();
    table.rows().into_iter().map(|row| (0..tk).filter(|&j| row[j]).collect()).collect()
}

#[test]
fn window_and_dilated() {
    let window = Pattern::Window { left: 1, right: 0 };
    assert_eq!(seen(&window, 4, 3), [vec![0], vec![0, 1], vec![1, 2], vec![2]]);
    let dilated = Pattern::Dilated { left: 1, right: 2, dilation: 2 };
    assert_eq!(seen(&dilated, 3, 6), [vec![0, 2, 4], vec![1, 3, 5], vec![0, 2, 4]]);
    let widest = Pattern::Dilated { left: usize::MAX, right: usize::MAX, dilation: 3 };
    assert_eq!(seen(&widest, 2, 5), [vec![0, 3], vec![1, 4]]);
    assert_eq!(widest.keys(1, 2, 5).unwrap(), [1, 4]);
}

#[test]
fn strided_and_fixed() {
    let strided = seen(&Pattern::Strided { stride: 3 }, 8, 8);
    assert_eq!((&strided[2][..], &strided[7][..]), (&[0, 1, 2][..], &[1, 4, 5, 6, 7][..]));
    let fixed = seen(&Pattern::Fixed { stride: 3, summary: 1 }, 8, 8);
    assert_eq!((&fixed[4][..], &fixed[7][..]), (&[2, 3, 4][..], &[2, 5, 6, 7][..]));
    let all = seen(&Pattern::Fixed { stride: 3, summary: 3 }, 5, 5);
    assert_eq!(all[4], [0, 1, 2, 3, 4]);
}

#[test]
fn global_tokens_see_and_are_seen() {
    let pattern = Pattern::Global { left: 0, right: 0, tokens: vec![9, 1, 1] };
    assert_eq!(seen(&pattern, 4, 3), [vec![0, 1], vec![0, 1, 2], vec![1, 2], vec![1]]);
}

#[test]
fn bigbird_draws_without_putting_back() {
    let pattern = Pattern::BigBird { block: 2, window: 0, global_blocks: 1, random: 2, seed: 5 };
    for i in [4, 5] {
        // Block 2 sees itself and block 0; the draws are words 4 and 5 of the seed, over 1 3 4 5 6.
        let mut others = vec![1, 3, 4, 5, 6];
        let mut blocks = vec![0, 2];
        for word in philox_words(5, 4, 2).unwrap() {
            blocks.push(others.remove(((u64::from(word) * others.len() as u64) >> 32) as usize));
        }
        blocks.sort();
        let keys: Vec<usize> =
            blocks.iter().flat_map(|c| [2 * c, 2 * c + 1]).filter(|&j| j < 13).collect();
        assert_eq!(pattern.keys(i, 6, 13).unwrap(), keys);
    }
    assert_eq!(pattern.keys(0, 6, 13).unwrap(), (0..13).collect::<Vec<_>>());
    let many = Pattern::BigBird { block: 3, window: 0, global_blocks: 0, random: 99, seed: 0 };
    assert_eq!(many.keys(4, 5, 7).unwrap(), (0..7).collect::<Vec<_>>());
}

#[test]
fn blocks_follow_their_table() {
    let table = array![[true, false], [false, true]];
    let pattern = Pattern::Blocks { block: 2, mask: &table };
    assert_eq!(seen(&pattern, 3, 3), [vec![0, 1], vec![0, 1], vec![2]]);
}

#[test]
fn what_is_not_visible_is_not_read() {
    let (q, k) = (column::<f64>(&[0.0; 3]), column(&[0.0, f64::NAN, 0.0]));
    let v = column(&[1.0, f64::NAN, 5.0]);
    let dilated = Pattern::Dilated { left: 1, right: 1, dilation: 2 };
    let steps = sparse_steps(&q, &k, &v, &dilated, None, false).unwrap();
    assert_eq!((steps.output[[0, 0, 0, 0]], steps.output[[0, 0, 2, 0]]), (3.0, 3.0));
    assert!(steps.output[[0, 0, 1, 0]].is_nan());
    assert_eq!(steps.visited.to_vec(), [2, 1, 2]);
}

#[test]
fn a_query_without_keys_is_zero() {
    let none = Array2::from_elem((1, 1), false);
    let pattern = Pattern::Blocks { block: 4, mask: &none };
    let x = column::<f32>(&[1.0, 2.0]);
    let steps = sparse_steps(&x, &x, &x, &pattern, None, false).unwrap();
    assert_eq!(steps.output, column::<f32>(&[0.0, 0.0]));
    assert_eq!(steps.lse[[0, 0, 0]], f32::NEG_INFINITY);
    assert_eq!(steps.visited.to_vec(), [0, 0]);
}

#[test]
fn empty_sizes() {
    let pattern = Pattern::Strided { stride: 2 };
    for (batch, tq, tk) in [(0, 2, 2), (1, 0, 2), (1, 2, 0)] {
        let (q, k) = (Array4::<f32>::zeros((batch, 2, tq, 3)), Array4::zeros((batch, 1, tk, 3)));
        let v = Array4::ones((batch, 1, tk, 4));
        assert_eq!(
            sparse(&q, &k, &v, &pattern, None, true).unwrap(),
            Array4::<f32>::zeros((batch, 2, tq, 4))
        );
    }
    let empty = Array2::from_elem((0, 1), true);
    assert!(sparse_mask(&Pattern::Blocks { block: 2, mask: &empty }, 0, 2, false).is_ok());
}

#[test]
fn faults() {
    let code = |pattern| sparse_mask(&pattern, 4, 4, false).unwrap_err().code();
    let bigbird =
        |block, seed| Pattern::BigBird { block, window: 1, global_blocks: 1, random: 1, seed };
    assert_eq!(code(Pattern::Dilated { left: 1, right: 1, dilation: 0 }), "invalid_config");
    assert_eq!(code(Pattern::Strided { stride: 0 }), "invalid_config");
    assert_eq!(code(Pattern::Fixed { stride: 0, summary: 0 }), "invalid_config");
    assert_eq!(code(Pattern::Fixed { stride: 2, summary: 3 }), "invalid_config");
    assert_eq!(code(bigbird(0, 0)), "invalid_config");
    assert_eq!(code(bigbird(1, 1 << 53)), "invalid_config");
    let table = Array2::from_elem((2, 2), true);
    assert_eq!(code(Pattern::Blocks { block: 0, mask: &table }), "invalid_config");
    let beyond = Pattern::Strided { stride: 1 }.keys(4, 4, 4).unwrap_err();
    assert_eq!(beyond.to_string(), "keys: i: expected an integer below 4, got 4");
    assert_eq!(
        code(Pattern::Blocks { block: 3, mask: &table.slice(s![..1, ..]) }),
        "shape_mismatch"
    );
    let x = Array4::<f32>::zeros((1, 1, 4, 2));
    let window = Pattern::Window { left: 1, right: 1 };
    let error = sparse(&x, &x, &x, &window, Some(f64::INFINITY), false).unwrap_err();
    assert_eq!(error.to_string(), "sparse: scale: expected a finite number, got inf");
}

// What holds for all inputs

fn pattern(table: &'static ArrayRef2<bool>) -> impl Strategy<Value = Pattern<'static>> {
    let (side, step) = (0..6_usize, 1..6_usize);
    let seed = 0..1_u64 << 53;
    prop_oneof![
        (side.clone(), side.clone()).prop_map(|(left, right)| Pattern::Window { left, right }),
        (side.clone(), side.clone(), step.clone())
            .prop_map(|(left, right, dilation)| Pattern::Dilated { left, right, dilation }),
        step.clone().prop_map(|stride| Pattern::Strided { stride }),
        step.clone()
            .prop_flat_map(|stride| (Just(stride), 0..=stride))
            .prop_map(|(stride, summary)| Pattern::Fixed { stride, summary }),
        (side.clone(), side.clone(), proptest::collection::vec(0..20_usize, 0..4))
            .prop_map(|(left, right, tokens)| Pattern::Global { left, right, tokens }),
        (step.clone(), 0..2_usize, 0..3_usize, 0..4_usize, seed).prop_map(
            |(block, window, global_blocks, random, seed)| Pattern::BigBird {
                block,
                window,
                global_blocks,
                random,
                seed
            }
        ),
        step.prop_map(move |block| Pattern::Blocks { block, mask: table }),
    ]
}

/// A table of blocks that lives as long as the tests.
fn table() -> &'static ArrayRef2<bool> {
    let table = signed::<f64>((1, 1, 16, 16), 3).mapv(|x| x > 0.0);
    Box::leak(Box::new(table.slice_move(s![0, 0, .., ..])))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn keys_are_those_that_the_condition_allows_and_sdpa_agrees(
        pattern in pattern(table()),
        (tq, tk, d, causal) in (1..15_usize, 0..15_usize, 1..4_usize, any::<bool>()),
        seed in 0..1_000_000_u64,
    ) {
        // A table has as many blocks as the lengths.
        let mut pattern = pattern;
        let fitting;
        if let Pattern::Blocks { block, mask } = &mut pattern {
            fitting = mask.slice(s![..tq.div_ceil(*block), ..tk.div_ceil(*block)]);
            *mask = &fitting;
        }
        let mask = sparse_mask(&pattern, tq, tk, causal).unwrap();
        for (i, want) in seen(&pattern, tq, tk).iter().enumerate() {
            prop_assert_eq!(&pattern.keys(i, tq, tk).unwrap(), want);
        }

        let q = signed::<f64>((2, 4, tq, d), seed);
        let (k, v) = (signed((2, 2, tk, d), seed + 1), signed((2, 2, tk, 3), seed + 2));
        let steps = sparse_steps(&q, &k, &v, &pattern, None, causal).unwrap();
        let keep = mask.clone().into_dyn();
        let options = Sdpa { mask: Mask { keep: Some(&keep), ..Mask::default() }, ..Sdpa::default() };
        let dense = sdpa_steps(&q, &k, &v, &options).unwrap();
        prop_assert!(same(&steps.output, &dense.output) && same(&steps.lse, &dense.lse));
        let counts: Vec<i64> = mask.rows().into_iter().map(|row| row.iter().filter(|&&x| x).count() as i64).collect();
        prop_assert_eq!(steps.visited.to_vec(), counts);
    }
}
