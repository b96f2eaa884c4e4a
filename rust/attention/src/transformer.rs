//! A whole transformer over tokens: embeddings, a stack of blocks, and scores over the vocabulary.
//!
//! ```text
//! x = embedding[tokens] + position_embedding[0 .. T - 1] + segment_embedding[segments]
//! logits = norm(blocks(norm(x))) · unembeddingᵀ
//! ```
//!
//! Causal it is a decoder (GPT), else an encoder (BERT). Norms and tables are those that it was given.
//!
//! Letters: B batch, T length, C model width, V size of the vocabulary, P positions, S segments.
//!
//! Sources: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; Devlin et al.,
//! "BERT", 2019; Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017 (one table for
//! both ends).

use ndarray::{Array3, ArrayRef1, ArrayRef2, Axis, CowArray, Ix2, s};

use crate::block::{Block, BlockOptions, Norm};
use crate::checks::check_transformer;
use crate::errors::Result;
use crate::float::Float;
use crate::mha::linear;

/// The weights of a model, owned or borrowed.
#[derive(Debug, Clone)]
pub struct Transformer<'a, T> {
    /// (V, C)
    pub embedding: CowArray<'a, T, Ix2>,
    /// Blocks without cross-attention, in the order in which they run.
    pub layers: Vec<Block<'a, T>>,
    /// (P, C): of the positions 0 to P - 1; `None` = the sum has no such part.
    pub position_embedding: Option<CowArray<'a, T, Ix2>>,
    /// (S, C), with segments and only then.
    pub segment_embedding: Option<CowArray<'a, T, Ix2>>,
    /// After the sum of the embeddings; `None` = no norm.
    pub embedding_norm: Option<Norm<'a, T>>,
    /// After the last block; `None` = no norm.
    pub final_norm: Option<Norm<'a, T>>,
    /// (V, C); `None` = `embedding`.
    pub unembedding: Option<CowArray<'a, T, Ix2>>,
}

/// What one call gives.
#[derive(Debug, Clone)]
pub struct TransformerSteps<T> {
    /// (B, T, C)
    pub output: Array3<T>,
    /// (B, T, V)
    pub logits: Array3<T>,
}

impl<'a, T: Float> Transformer<'a, T> {
    /// A model of token embeddings and blocks alone.
    pub fn new(embedding: impl Into<CowArray<'a, T, Ix2>>, layers: Vec<Block<'a, T>>) -> Self {
        Self {
            embedding: embedding.into(),
            layers,
            position_embedding: None,
            segment_embedding: None,
            embedding_norm: None,
            final_norm: None,
            unembedding: None,
        }
    }

    /// `tokens` (B, T), with `segments` (B, T) if the model has a table of them: (B, T, C).
    ///
    /// `causal`: no position sees a later one. `kv_lengths`: (B), how many tokens of each row exist.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    pub fn forward(
        &self,
        tokens: &ArrayRef2<i64>,
        segments: Option<&ArrayRef2<i64>>,
        causal: bool,
        kv_lengths: Option<&ArrayRef1<i64>>,
    ) -> Result<Array3<T>> {
        Ok(self.steps(tokens, segments, causal, kv_lengths)?.output)
    }

    /// The call with its logits; same arguments and errors.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    ///
    /// ```
    /// use ndarray::array;
    /// use rosetta_attention::Transformer;
    /// // Without a block the logits are dot products of the tokens' own rows.
    /// let model = Transformer::new(array![[1.0, 0.0], [2.0, 2.0]], vec![]);
    /// let steps = model.steps(&array![[1, 0]], None, true, None)?;
    /// assert_eq!(steps.logits, array![[[2.0, 8.0], [1.0, 2.0]]]);
    /// # Ok::<(), rosetta_attention::AttentionError>(())
    /// ```
    pub fn steps(
        &self,
        tokens: &ArrayRef2<i64>,
        segments: Option<&ArrayRef2<i64>>,
        causal: bool,
        kv_lengths: Option<&ArrayRef1<i64>>,
    ) -> Result<TransformerSteps<T>> {
        check_transformer("transformer", tokens, segments, kv_lengths, self)?;

        // 1. embed: the rows of token, position and segment, added, and normed if there is a norm
        let mut x = rows_of(&self.embedding, tokens); // (B, T, C)
        if let Some(table) = &self.position_embedding {
            x += &table.slice(s![..tokens.ncols(), ..]); // (B, T, C)
        }
        if let (Some(table), Some(segments)) = (&self.segment_embedding, segments) {
            x += &rows_of(table, segments); // (B, T, C)
        }
        if let Some(norm) = &self.embedding_norm {
            x = norm.forward(&*x)?; // (B, T, C)
        }

        // 2. layers: one after the other
        let options = BlockOptions { causal, kv_lengths, context_lengths: None };
        for layer in &self.layers {
            x = layer.forward(&x, None, &options)?; // (B, T, C)
        }

        // 3. final norm: of a pre-norm model, in which nothing else bounds the sum of all layers
        let output = match &self.final_norm {
            None => x,
            Some(norm) => norm.forward(&*x)?,
        }; // (B, T, C)

        // 4. logits: how well each position fits each token's row
        let table = self.unembedding.as_ref().unwrap_or(&self.embedding); // (V, C)
        let logits = linear(&output, table, None); // (B, T, V)
        Ok(TransformerSteps { output, logits })
    }
}

/// The row of a table (n, C) that each index names: (B, T, C).
fn rows_of<T: Float>(table: &ArrayRef2<T>, indices: &ArrayRef2<i64>) -> Array3<T> {
    let (batch, len) = indices.dim();
    let rows: Vec<usize> = indices.iter().map(|&index| index as usize).collect();
    let rows = table.select(Axis(0), &rows); // (B·T, C)
    rows.into_shape_clone((batch, len, table.ncols())).expect("same size")
}
