//! Feed-forward layers, norms, blocks and whole transformers of the Python package.

use ndarray::{Ix1, Ix2, Ix3};
use pyo3::prelude::*;
use rosetta_attention::AttentionError::ShapeMismatch;
use rosetta_attention::{
    self as core, Activation, Block, BlockOptions, FeedForward, Norm, NormKind, Transformer,
};

use crate::arguments::{flag, number};
use crate::arrays::{
    Floating, Object, array, float_kind, give_narrow, optional_array, optional_view,
    optional_wide_view, view, wide, wide_view, with_float,
};
use crate::errors::{exception, refuse, released};
use crate::mha::Layer;
use crate::weights::Weights;

/// What is expected of a sequence.
const SEQUENCE: &str = "rank 3 (B, T, C)";

/// A `FeedForward` of the Python package.
struct FeedForwardLayer<'py, S: Floating> {
    weights: Weights<'py, S>,
    activation: Activation,
}

impl<'py, S: Floating> FeedForwardLayer<'py, S> {
    fn extract(layer: &Object<'py>) -> PyResult<Self> {
        let optional = ["b_1", "b_2", "w_3", "b_3"];
        let activation: core::Result<Activation> =
            layer.getattr("activation")?.str()?.to_str()?.parse();
        Ok(Self {
            activation: activation.map_err(|error| exception(layer.py(), &error))?,
            weights: Weights::extract("feed_forward", layer, &["w_1", "w_2"], &optional)?,
        })
    }

    fn view(&self, py: Python<'_>) -> PyResult<FeedForward<'_, S::Compute>> {
        Ok(FeedForward {
            w_1: self.weights.matrix(py, "w_1")?,
            w_2: self.weights.matrix(py, "w_2")?,
            b_1: self.weights.optional_vector(py, "b_1")?,
            b_2: self.weights.optional_vector(py, "b_2")?,
            w_3: self.weights.optional_matrix(py, "w_3")?,
            b_3: self.weights.optional_vector(py, "b_3")?,
            activation: self.activation,
        })
    }
}

/// A `Norm` of the Python package.
struct NormLayer<'py, S: Floating> {
    weights: Weights<'py, S>,
    kind: NormKind,
    eps: f64,
}

impl<'py, S: Floating> NormLayer<'py, S> {
    fn extract(norm: &Object<'py>) -> PyResult<Self> {
        let kind: core::Result<NormKind> = norm.getattr("kind")?.str()?.to_str()?.parse();
        Ok(Self {
            kind: kind.map_err(|error| exception(norm.py(), &error))?,
            eps: number("norm", "eps", &norm.getattr("eps")?)?,
            weights: Weights::extract("norm", norm, &[], &["weight", "bias"])?,
        })
    }

    fn optional(norm: &Object<'py>) -> PyResult<Option<Self>> {
        if norm.is_none() { Ok(None) } else { Self::extract(norm).map(Some) }
    }

    fn view(&self, py: Python<'_>) -> PyResult<Norm<'_, S::Compute>> {
        Ok(Norm {
            weight: self.weights.optional_vector(py, "weight")?,
            bias: self.weights.optional_vector(py, "bias")?,
            kind: self.kind,
            eps: self.eps,
        })
    }
}

/// A `Block` of the Python package.
struct BlockLayers<'py, S: Floating> {
    attention: Layer<'py, S>,
    feed_forward: FeedForwardLayer<'py, S>,
    norm_1: NormLayer<'py, S>,
    norm_2: NormLayer<'py, S>,
    cross: Option<Layer<'py, S>>,
    norm_3: Option<NormLayer<'py, S>>,
    norm_first: bool,
}

impl<'py, S: Floating> BlockLayers<'py, S> {
    fn extract(block: &Object<'py>) -> PyResult<Self> {
        let part = |name| block.getattr(name);
        let cross = part("cross")?;
        Ok(Self {
            attention: Layer::extract("mha", &part("attention")?)?,
            feed_forward: FeedForwardLayer::extract(&part("feed_forward")?)?,
            norm_1: NormLayer::extract(&part("norm_1")?)?,
            norm_2: NormLayer::extract(&part("norm_2")?)?,
            cross: if cross.is_none() { None } else { Some(Layer::extract("mha", &cross)?) },
            norm_3: NormLayer::optional(&part("norm_3")?)?,
            norm_first: flag("block", "norm_first", &part("norm_first")?)?,
        })
    }

    fn view(&self, py: Python<'_>) -> PyResult<Block<'_, S::Compute>> {
        Ok(Block {
            attention: self.attention.view(py)?,
            feed_forward: self.feed_forward.view(py)?,
            norm_1: self.norm_1.view(py)?,
            norm_2: self.norm_2.view(py)?,
            cross: self.cross.as_ref().map(|layer| layer.view(py)).transpose()?,
            norm_3: self.norm_3.as_ref().map(|norm| norm.view(py)).transpose()?,
            norm_first: self.norm_first,
        })
    }
}

/// (norm, x) -> output
#[pyfunction]
pub fn norm<'py>(norm: &Object<'py>, x: &Object<'py>) -> PyResult<Object<'py>> {
    let (py, name) = (x.py(), "norm");
    with_float!(float_kind(name, "x", x)?, S => {
        let x = array::<S>(name, "x", x)?;
        let norm = NormLayer::<S>::extract(norm)?;
        let (x, norm) = (wide(&x), norm.view(py)?);
        let output = released(py, || norm.forward(&*x))?;
        Ok(give_narrow::<S, _>(py, output))
    })
}

/// (layer, x) -> output
#[pyfunction]
pub fn feed_forward<'py>(layer: &Object<'py>, x: &Object<'py>) -> PyResult<Object<'py>> {
    let (py, name) = (x.py(), "feed_forward");
    with_float!(float_kind(name, "x", x)?, S => {
        let x = array::<S>(name, "x", x)?;
        let layer = FeedForwardLayer::<S>::extract(layer)?;
        let (x, layer) = (wide(&x), layer.view(py)?);
        let Some((&width, leading)) = x.shape().split_last() else {
            return Err(refuse(py, ShapeMismatch, name, "x", "at least one axis", "rank 0"));
        };
        let rows = x.to_shape((1, leading.iter().product(), width)).expect("same size");
        let output = released(py, || layer.forward(&rows))?;
        let shape = [leading, &[output.dim().2]].concat();
        Ok(give_narrow::<S, _>(py, output.into_shape_with_order(shape).expect("same size")))
    })
}

/// (block, x, context, causal, kv_lengths, context_lengths) -> output
#[pyfunction]
pub fn block<'py>(
    block: &Object<'py>,
    x: &Object<'py>,
    context: &Object<'py>,
    causal: &Object<'py>,
    kv_lengths: &Object<'py>,
    context_lengths: &Object<'py>,
) -> PyResult<Object<'py>> {
    let (py, name) = (x.py(), "block");
    with_float!(float_kind(name, "x", x)?, S => {
        let x = array::<S>(name, "x", x)?;
        let context = optional_array::<S>(name, "context", context)?;
        let block = BlockLayers::<S>::extract(block)?;
        let lengths = optional_array::<i64>(name, "kv_lengths", kv_lengths)?;
        let others = optional_array::<i64>(name, "context_lengths", context_lengths)?;
        let causal = flag(name, "causal", causal)?;

        let x = wide_view::<S, Ix3>(py, name, "x", &x, SEQUENCE)?;
        let context =
            optional_wide_view::<S, Ix3>(py, name, "context", context.as_ref(), SEQUENCE)?;
        let block = block.view(py)?;
        let row = |argument, x| optional_view::<i64, Ix1>(py, name, argument, x, "shape (B,)");
        let kv_lengths = row("kv_lengths", lengths.as_ref())?;
        let context_lengths = row("context_lengths", others.as_ref())?;
        let options = BlockOptions {
            causal,
            kv_lengths: kv_lengths.as_deref(),
            context_lengths: context_lengths.as_deref(),
        };
        let output = released(py, || block.forward(&x, context.as_deref(), &options))?;
        Ok(give_narrow::<S, _>(py, output))
    })
}

/// (model, tokens, segments, causal, kv_lengths) -> output, logits
#[pyfunction]
pub fn transformer<'py>(
    model: &Object<'py>,
    tokens: &Object<'py>,
    segments: &Object<'py>,
    causal: &Object<'py>,
    kv_lengths: &Object<'py>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    let (py, name) = (tokens.py(), "transformer");
    with_float!(float_kind(name, "embedding", &model.getattr("embedding")?)?, S => {
        let tokens = array::<i64>(name, "tokens", tokens)?;
        let segments = optional_array::<i64>(name, "segments", segments)?;
        let lengths = optional_array::<i64>(name, "kv_lengths", kv_lengths)?;
        let causal = flag(name, "causal", causal)?;
        let tables = ["position_embedding", "segment_embedding", "unembedding"];
        let weights = Weights::<S>::extract(name, model, &["embedding"], &tables)?;
        let embedding_norm = NormLayer::<S>::optional(&model.getattr("embedding_norm")?)?;
        let final_norm = NormLayer::<S>::optional(&model.getattr("final_norm")?)?;
        let blocks = model.getattr("layers")?.try_iter()?;
        let blocks: Vec<_> =
            blocks.map(|block| BlockLayers::<S>::extract(&block?)).collect::<PyResult<_>>()?;

        let tokens = view::<_, Ix2>(py, name, "tokens", &tokens, "rank 2 (B, T)")?;
        let segments =
            optional_view::<_, Ix2>(py, name, "segments", segments.as_ref(), "rank 2 (B, T)")?;
        let lengths =
            optional_view::<_, Ix1>(py, name, "kv_lengths", lengths.as_ref(), "shape (B,)")?;
        let model = Transformer {
            embedding: weights.matrix(py, "embedding")?,
            layers: blocks.iter().map(|block| block.view(py)).collect::<PyResult<_>>()?,
            position_embedding: weights.optional_matrix(py, "position_embedding")?,
            segment_embedding: weights.optional_matrix(py, "segment_embedding")?,
            embedding_norm: embedding_norm.as_ref().map(|norm| norm.view(py)).transpose()?,
            final_norm: final_norm.as_ref().map(|norm| norm.view(py)).transpose()?,
            unembedding: weights.optional_matrix(py, "unembedding")?,
        };
        let steps = released(py, || {
            model.steps(&tokens, segments.as_deref(), causal, lengths.as_deref())
        })?;
        Ok((give_narrow::<S, _>(py, steps.output), give_narrow::<S, _>(py, steps.logits)))
    })
}
