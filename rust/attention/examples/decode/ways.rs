//! Three ways to generate tokens with one layer of attention, what each costs, and how long each takes.
//!
//! ```text
//! everything       the whole text goes through the layer for each token, and all but the last row is thrown away
//! keys and values  of the whole text are made again, the query of the last token alone
//! cache            the last token alone goes through the layer; keys and values of the past are kept
//! ```
//!
//! All three make the same tokens: each one is the output for the last, normalised. Per step, at a text of t tokens
//! of width C, in multiply-adds:
//!
//! ```text
//! everything       4 t C² + 2 t² C      (the masked half of the scores is computed too, as the naive rung does)
//! keys and values  2 t C² + 2 C² + 2 t C
//! cache            4 C² + 2 t C
//! ```
//!
//! A product of an (m, k) and a (k, n) matrix is m k n multiply-adds, and moves m k + k n + m n numbers.
//!
//! Letters: T tokens generated, C width.
//!
//! Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 2.

use std::time::Instant;

use ndarray::{Array1, Array2, Array3, s};
use rosetta_attention::{
    Cache, KvCache, Mask, MhaOptions, MultiHeadAttention, Result, Sdpa, philox_words, rms_norm,
};

/// One of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Nothing is kept.
    Everything,
    /// One query, all keys and values.
    KeysAndValues,
    /// One query, one key, one value.
    Cache,
}

impl Way {
    /// In the order of the table.
    pub const ALL: [Self; 3] = [Self::Everything, Self::KeysAndValues, Self::Cache];

    /// As in docs/decode.md.
    pub fn name(self) -> &'static str {
        match self {
            Self::Everything => "everything",
            Self::KeysAndValues => "keys and values",
            Self::Cache => "cache",
        }
    }
}

/// Of all steps together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Products of two numbers, added up.
    pub multiply_adds: u64,
    /// Bytes read and written, each operand of a product once.
    pub moved: u64,
}

impl Cost {
    /// And that of `count` products of an (m, k) and a (k, n) matrix.
    fn product(&mut self, count: usize, m: usize, k: usize, n: usize) {
        self.multiply_adds += (count * m * k * n) as u64;
        self.moved += (size_of::<f32>() * count * (m * k + k * n + m * n)) as u64;
    }

    /// And that of the step that makes the token after the t-th.
    fn step(&mut self, way: Way, t: usize, width: usize, heads: usize) {
        let asked = if way == Way::Everything { t } else { 1 }; // queries
        let made = if way == Way::Cache { 1 } else { t }; // keys and values
        self.product(1, asked, width, width); // queries
        self.product(2, made, width, width); // keys and values
        self.product(heads, asked, width / heads, t); // scores
        self.product(heads, asked, t, width / heads); // weighted sum
        self.product(1, asked, width, width); // output
    }
}

/// How it stood when so many tokens were made.
#[derive(Debug, Clone)]
pub struct Point {
    /// T.
    pub tokens: usize,
    /// Since the start.
    pub seconds: f64,
    /// Until then.
    pub cost: Cost,
    /// Bytes of the cache.
    pub held: usize,
    /// (C): what the layer made of the last token.
    pub output: Array1<f32>,
}

/// What came of one way.
#[derive(Debug, Clone)]
pub struct Run {
    /// (1, T, C): all tokens but the last one that was made.
    pub text: Array3<f32>,
    /// At each length.
    pub points: Vec<Point>,
}

/// w_q, w_k, w_v and w_o of a layer, (C, C) each.
pub type Weights = [Array2<f32>; 4];

/// Numbers of mean 0 and variance 1 over C.
pub fn random_weights(width: usize) -> Result<Weights> {
    let words = philox_words(0, 0, 4 * width * width)?;
    // A word is uniform in 0..2^32; over 0..1 the variance is 1/12.
    let number =
        |word: u32| (f64::from(word) / 2.0_f64.powi(32) - 0.5) * (12.0 / width as f64).sqrt();
    let weight = |at: usize| {
        Array2::from_shape_fn((width, width), |(i, j)| {
            number(words[(at * width + i) * width + j]) as f32
        })
    };
    Ok([weight(0), weight(1), weight(2), weight(3)])
}

/// The token that a text begins with, (C).
pub fn first_token(width: usize) -> Result<Array1<f32>> {
    let words = philox_words(1, 0, width)?;
    Ok(words.mapv(|word| ((f64::from(word) / 2.0_f64.powi(32) - 0.5) * 12.0_f64.sqrt()) as f32))
}

/// Tokens after the first, as many as the longest of `lengths`, which ascend.
pub fn generate(way: Way, weights: &Weights, heads: usize, lengths: &[usize]) -> Result<Run> {
    let width = weights[0].nrows(); // C
    let [w_q, w_k, w_v, w_o] = weights.each_ref().map(|weight| weight.view());
    let layer = MultiHeadAttention::new(w_q, w_k, w_v, w_o, heads);
    let mut cache = KvCache::<f32>::new(1, heads, width / heads, width / heads, None)?;
    let causal = Mask { causal: true, ..Mask::default() };
    let attention = Sdpa { mask: causal, ..Sdpa::default() };
    let with_mask = MhaOptions { attention, ..MhaOptions::default() };
    let longest = lengths.last().copied().unwrap_or(0); // T
    let mut tokens = Array3::zeros((1, longest + 1, width)); // (1, T + 1, C)
    tokens.slice_mut(s![0, 0, ..]).assign(&first_token(width)?);
    let (mut cost, mut points, start) = (Cost::default(), vec![], Instant::now());
    for t in 1..=longest {
        let text = tokens.slice(s![.., ..t, ..]); // (1, t, C)
        let last = tokens.slice(s![.., t - 1..t, ..]); // (1, 1, C)
        let made = match way {
            Way::Everything => layer.forward(&text, None, &with_mask)?, // (1, t, C)
            Way::KeysAndValues => layer.forward(&last, Some(&text), &MhaOptions::default())?,
            Way::Cache => layer.decode(&last, &mut cache, &Sdpa::default())?, // (1, 1, C)
        };
        let output = made.slice(s![0, made.dim().1 - 1, ..]).to_owned(); // (C)
        let next = rms_norm(&output, None, 1e-5)?; // (C)
        tokens.slice_mut(s![0, t, ..]).assign(&next);
        cost.step(way, t, width, heads);
        if lengths.contains(&t) {
            let (seconds, held) = (start.elapsed().as_secs_f64(), cache.stats().bytes);
            points.push(Point { tokens: t, seconds, cost, held, output });
        }
    }
    Ok(Run { text: tokens.slice(s![.., ..longest, ..]).to_owned(), points })
}
