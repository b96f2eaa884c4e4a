//! Blocks and transformers: against their parts put together by hand, and what holds for any weights.

use crate::common::{same, signed};
use ndarray::{Array1, Array2, Array3, ArrayRef3, CowArray, Ix1, Ix2, array, s};
use proptest::prelude::*;
use rosetta_attention::{
    Activation, Block, BlockOptions, FeedForward, Mask, MhaOptions, MlaOptions, MultiHeadAttention,
    MultiHeadLatentAttention, Norm, NormKind, Rope, Sdpa, Transformer, layer_norm, rms_norm,
};

fn weight(rows: usize, columns: usize, seed: u64) -> CowArray<'static, f64, Ix2> {
    signed::<f64>((1, 1, rows, columns), seed).slice_move(s![0, 0, .., ..]).into()
}

fn vector(size: usize, seed: u64) -> CowArray<'static, f64, Ix1> {
    signed::<f64>((1, 1, 1, size), seed).slice_move(s![0, 0, 0, ..]).into()
}

fn sequence(batch: usize, len: usize, width: usize, seed: u64) -> Array3<f64> {
    signed::<f64>((1, batch, len, width), seed).slice_move(s![0, .., .., ..])
}

/// C 6, two heads over one key/value head.
fn attention(seed: u64, context: usize) -> MultiHeadAttention<'static, f64> {
    let mut layer = MultiHeadAttention::new(
        weight(8, 6, seed),
        weight(4, context, seed + 1),
        weight(4, context, seed + 2),
        weight(6, 8, seed + 3),
        2,
    );
    layer.num_kv_heads = Some(1);
    layer.b_q = Some(vector(8, seed + 4));
    layer
}

fn norm(seed: u64) -> Norm<'static, f64> {
    Norm { weight: Some(vector(6, seed)), bias: Some(vector(6, seed + 1)), ..Norm::default() }
}

fn block(seed: u64) -> Block<'static, f64> {
    let mut feed_forward = FeedForward::new(weight(10, 6, seed + 20), weight(6, 10, seed + 21));
    feed_forward.b_1 = Some(vector(10, seed + 22));
    let mut attention = attention(seed, 6);
    attention.rope = Some(Rope::default());
    Block::new(attention, feed_forward, norm(seed + 30), norm(seed + 40))
}

fn cross_block(seed: u64) -> Block<'static, f64> {
    Block { cross: Some(attention(seed + 50, 5)), norm_3: Some(norm(seed + 60)), ..block(seed) }
}

fn masked(mask: Mask<'_>) -> MhaOptions<'_, f64> {
    MhaOptions { attention: Sdpa { mask, ..Sdpa::default() }, ..MhaOptions::default() }
}

#[test]
fn pre_norm_by_hand() {
    let (block, x, context) = (cross_block(1), sequence(2, 4, 6, 90), sequence(2, 3, 5, 91));
    let (lengths, context_lengths) = (array![4, 3], array![3, 1]);
    let options = BlockOptions {
        causal: true,
        kv_lengths: Some(&lengths),
        context_lengths: Some(&context_lengths),
    };
    let normed = |x: &ArrayRef3<f64>, norm: &Norm<'_, f64>| {
        layer_norm(x, norm.weight.as_deref(), norm.bias.as_deref(), 1e-5).unwrap()
    };
    let own = Mask { causal: true, kv_lengths: Some(&lengths), ..Mask::default() };
    let y = &x + &block.attention.forward(&normed(&x, &block.norm_1), None, &masked(own)).unwrap();
    let other = Mask { kv_lengths: Some(&context_lengths), ..Mask::default() };
    let cross = block.cross.as_ref().unwrap();
    let y =
        &y + &cross.forward(&normed(&y, &block.norm_2), Some(&context), &masked(other)).unwrap();
    let norm_3 = block.norm_3.as_ref().unwrap();
    let want = &y + &block.feed_forward.forward(&normed(&y, norm_3)).unwrap();
    assert_eq!(block.forward(&x, Some(&context), &options).unwrap(), want);
}

#[test]
fn post_norm_by_hand() {
    let (mut block, x) = (block(2), sequence(1, 3, 6, 92));
    block.norm_first = false;
    for norm in [&mut block.norm_1, &mut block.norm_2] {
        *norm = Norm { kind: NormKind::Rms, bias: None, eps: 0.5, ..norm.clone() };
    }
    let normed = |x: &ArrayRef3<f64>, norm: &Norm<'_, f64>| {
        rms_norm(x, norm.weight.as_deref(), 0.5).unwrap()
    };
    let attended = block.attention.forward(&x, None, &MhaOptions::default()).unwrap();
    let y = normed(&(attended + &x), &block.norm_1);
    let want = normed(&(block.feed_forward.forward(&y).unwrap() + &y), &block.norm_2);
    assert_eq!(block.forward(&x, None, &BlockOptions::default()).unwrap(), want);
}

#[test]
fn block_faults() {
    let x = sequence(1, 3, 6, 93);
    let code = |block: Block<'_, f64>, context: Option<&Array3<f64>>| {
        let context = context.map(|context| &**context);
        block.forward(&x, context, &BlockOptions::default()).unwrap_err().code()
    };
    let context = sequence(1, 2, 5, 94);
    assert_eq!(code(block(1), Some(&context)), "invalid_config");
    assert_eq!(code(cross_block(1), None), "invalid_config");
    assert_eq!(code(Block { norm_3: None, ..cross_block(1) }, Some(&context)), "invalid_config");
    let rms = Norm { kind: NormKind::Rms, ..norm(0) };
    assert_eq!(code(Block { norm_2: rms, ..block(1) }, None), "invalid_config");
    let mut narrow = block(1);
    narrow.attention.w_o = weight(5, 8, 0);
    assert_eq!(code(narrow, None), "shape_mismatch");
    let mut wide = block(1);
    wide.feed_forward.w_2 = weight(7, 10, 0);
    assert_eq!(code(wide, None), "shape_mismatch");
    let short = Norm { weight: Some(vector(5, 0)), ..Norm::default() };
    assert_eq!(code(Block { norm_1: short, ..block(1) }, None), "shape_mismatch");
    assert_eq!("batch".parse::<NormKind>().unwrap_err().code(), "invalid_config");
    let lengths = array![1];
    let options = BlockOptions { context_lengths: Some(&lengths), ..BlockOptions::default() };
    assert_eq!(block(1).forward(&x, None, &options).unwrap_err().code(), "invalid_config");
}

#[test]
fn empty_sizes() {
    for (batch, len) in [(0, 3), (2, 0)] {
        let x = Array3::zeros((batch, len, 6));
        assert_eq!(block(1).forward(&x, None, &BlockOptions::default()).unwrap(), x);
        let context = Array3::zeros((batch, 0, 5));
        let output = cross_block(1).forward(&x, Some(&context), &BlockOptions::default()).unwrap();
        assert_eq!(output.dim(), (batch, len, 6));
        let steps = model().steps(&Array2::zeros((batch, len)), None, true, None).unwrap();
        assert_eq!((steps.output.dim(), steps.logits.dim()), ((batch, len, 6), (batch, len, 7)));
    }
}

/// V 7, C 6, P 5, two blocks.
fn model() -> Transformer<'static, f64> {
    let mut model = Transformer::new(weight(7, 6, 70), vec![block(1), block(200)]);
    model.position_embedding = Some(weight(5, 6, 71));
    model.final_norm = Some(norm(72));
    model
}

#[test]
fn a_transformer_by_hand() {
    let mut model = model();
    model.segment_embedding = Some(weight(2, 6, 74));
    model.embedding_norm = Some(norm(75));
    model.unembedding = Some(weight(7, 6, 77));
    let (tokens, segments) = (array![[3, 0, 6], [1, 1, 2]], array![[0, 0, 1], [1, 1, 0]]);
    let position = model.position_embedding.as_ref().unwrap();
    let segment = model.segment_embedding.as_ref().unwrap();
    let x = Array3::from_shape_fn((2, 3, 6), |(b, t, c)| {
        let row = |table: &CowArray<'_, f64, Ix2>, n: i64| table[[n as usize, c]];
        row(&model.embedding, tokens[[b, t]])
            + row(position, t as i64)
            + row(segment, segments[[b, t]])
    });
    let lengths = array![3, 2];
    let options = BlockOptions { kv_lengths: Some(&lengths), ..BlockOptions::default() };
    let x = model.embedding_norm.as_ref().unwrap().forward(&*x).unwrap();
    let x = model.layers[0].forward(&x, None, &options).unwrap();
    let x = model.layers[1].forward(&x, None, &options).unwrap();
    let want = model.final_norm.as_ref().unwrap().forward(&*x).unwrap();
    let steps = model.steps(&tokens, Some(&segments), false, Some(&lengths)).unwrap();
    assert_eq!(steps.output, want);
    for ((b, t, v), logit) in steps.logits.indexed_iter() {
        let row = model.unembedding.as_ref().unwrap().slice(s![v, ..]).to_owned();
        let products = &want.slice(s![b, t, ..]) * &row;
        // In two orders, each of 6 products and 5 sums.
        let room = 2.0 * 6.0 * f64::EPSILON * products.mapv(f64::abs).sum();
        assert!((logit - products.sum()).abs() <= room);
    }
}

#[test]
fn a_causal_model_does_not_look_ahead() {
    let logits = |tokens: Array2<i64>| model().steps(&tokens, None, true, None).unwrap().logits;
    let (all, changed) = (logits(array![[1, 2, 3, 4]]), logits(array![[1, 2, 6, 0]]));
    assert!(same(all.slice(s![.., ..2, ..]), changed.slice(s![.., ..2, ..])));
    assert!(!same(all.slice(s![.., 2.., ..]), changed.slice(s![.., 2.., ..])));
}

#[test]
fn what_lies_beyond_a_length_is_not_seen() {
    let output = |last| {
        let lengths = array![2];
        model().forward(&array![[1, 2, last]], None, false, Some(&lengths)).unwrap()
    };
    assert!(same(output(3).slice(s![.., ..2, ..]), output(5).slice(s![.., ..2, ..])));
}

#[test]
fn transformer_faults() {
    let code = |model: Transformer<'_, f64>, tokens: Array2<i64>, segments: Option<Array2<i64>>| {
        model.forward(&tokens, segments.as_deref(), false, None).unwrap_err().code()
    };
    assert_eq!(code(model(), array![[7]], None), "invalid_config");
    assert_eq!(code(model(), array![[-1]], None), "invalid_config");
    assert_eq!(code(model(), Array2::zeros((1, 6)), None), "invalid_config"); // P is 5
    assert_eq!(code(model(), array![[0]], Some(array![[0]])), "invalid_config");
    let two = || Transformer { segment_embedding: Some(weight(2, 6, 0)), ..model() };
    assert_eq!(code(two(), array![[0]], None), "invalid_config");
    assert_eq!(code(two(), array![[0]], Some(array![[2]])), "invalid_config");
    assert_eq!(code(two(), array![[0]], Some(array![[0, 0]])), "shape_mismatch");
    let narrow = Transformer { position_embedding: Some(weight(5, 4, 0)), ..model() };
    assert_eq!(code(narrow, array![[0]], None), "shape_mismatch");
    let few = Transformer { unembedding: Some(weight(6, 6, 0)), ..model() };
    assert_eq!(code(few, array![[0]], None), "shape_mismatch");
    let error = model().forward(&array![[0]], None, false, Some(&array![2])).unwrap_err();
    let expected = "transformer: kv_lengths: expected values from 0 to 1, got [2]";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn swiglu_blocks_take_a_third_projection() {
    let mut block = block(3);
    block.feed_forward.activation = Activation::Swiglu;
    let x = sequence(1, 2, 6, 95);
    let code = block.forward(&x, None, &BlockOptions::default()).unwrap_err().code();
    assert_eq!(code, "invalid_config");
    block.feed_forward.w_3 = Some(weight(10, 6, 5));
    assert!(block.forward(&x, None, &BlockOptions::default()).is_ok());
}

// What holds for all inputs

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn absorbed_latent_attention_is_the_expanded_one(
        (batch, len, width, heads) in (1..3_usize, 0..6_usize, 1..5_usize, 1..4_usize),
        (latent, plain, rotary, dv) in (1..6_usize, 0..4_usize, 1..3_usize, 1..4_usize),
        (causal, norms, query_latent, interleaved) in any::<(bool, bool, bool, bool)>(),
        seed in 0..1_000_000_u64,
    ) {
        let rotary = 2 * rotary;
        let source = if query_latent { 3 } else { width };
        let mut layer = MultiHeadLatentAttention::new(
            weight(heads * (plain + rotary), source, seed),
            weight(latent, width, seed + 1),
            weight(rotary, width, seed + 2),
            weight(heads * plain, latent, seed + 3),
            weight(heads * dv, latent, seed + 4),
            weight(4, heads * dv, seed + 5),
            heads,
        );
        layer.w_dq = query_latent.then(|| weight(3, width, seed + 6));
        layer.q_norm = (query_latent && norms).then(|| vector(3, seed + 7));
        layer.kv_norm = norms.then(|| vector(latent, seed + 8));
        layer.rope.interleaved = interleaved;
        let x = sequence(batch, len, width, seed + 9);
        let lengths = Array1::from_shape_fn(batch, |b| (seed as usize + b) as i64 % (len as i64 + 1));
        let options = MlaOptions { causal, kv_lengths: Some(&lengths), scale: None };
        let (expanded, absorbed) =
            (layer.steps(&x, &options).unwrap(), layer.absorbed(&x, &options).unwrap());
        let room = 1e-9 * (1.0 + expanded.output.iter().fold(0.0, |top: f64, x| top.max(x.abs())));
        prop_assert!(expanded.output.iter().zip(&absorbed.output).all(|(a, b)| (a - b).abs() <= room));
        prop_assert!(expanded.weights.iter().zip(&absorbed.weights).all(|(a, b)| (a - b).abs() <= 1e-9));
        prop_assert!(same(&expanded.latent, &absorbed.latent));
        prop_assert!(same(&expanded.rope_key, &absorbed.rope_key));
    }

    #[test]
    fn rows_of_a_batch_are_independent(
        tokens in proptest::collection::vec(0..7_i64, 8),
        causal in any::<bool>(),
    ) {
        let tokens = Array2::from_shape_vec((2, 4), tokens).unwrap();
        let both = model().forward(&tokens, None, causal, None).unwrap();
        for b in 0..2 {
            let row = tokens.slice(s![b..b + 1, ..]);
            let alone = model().forward(&row, None, causal, None).unwrap();
            prop_assert!(same(&alone, both.slice(s![b..b + 1, .., ..]))); // whatever else is in the batch
        }
    }
}
