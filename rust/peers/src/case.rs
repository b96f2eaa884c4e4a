//! A question about sdpa, read from the request and its file.

use std::collections::HashMap;

use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

/// What all peers can be asked.
pub const FEATURES: [&str; 4] = ["causal", "scale", "gqa", "value_dim"];

/// Why there is no answer: the fields of one that says so.
pub struct Refusal(pub Value);

impl Refusal {
    pub fn unsupported(feature: impl Into<String>) -> Self {
        Self(json!({"status": "unsupported", "feature": feature.into()}))
    }

    pub fn error(code: &str, message: impl std::fmt::Display) -> Self {
        Self(json!({"status": "error", "code": code, "message": message.to_string()}))
    }
}

/// Why a file that holds more than f32 is not answered: its types are another one, or are no single float type.
fn other_type(file: &SafeTensors<'_>) -> Refusal {
    let types: Vec<_> = file.tensors().iter().map(|(_, tensor)| tensor.dtype()).collect();
    let one = types.iter().all(|&dtype| dtype == types[0]);
    if one && [Dtype::F64, Dtype::F16, Dtype::BF16].contains(&types[0]) {
        return Refusal::unsupported(format!("dtype.{}", types[0]).to_lowercase());
    }
    Refusal::error("dtype_mismatch", format!("sdpa: expected one float type, got {types:?}"))
}

/// One array (B, H, T, n), row-major.
pub struct Array {
    pub shape: [usize; 4],
    pub numbers: Vec<f32>,
}

/// q (B, Hq, Tq, D), k (B, Hkv, Tk, D), v (B, Hkv, Tk, Dv).
pub struct Case {
    pub q: Array,
    pub k: Array,
    pub v: Array,
    pub scale: f32,
    pub causal: bool,
}

impl Case {
    pub fn read(config: &Map<String, Value>, bytes: &[u8]) -> Result<Self, Refusal> {
        let file =
            SafeTensors::deserialize(bytes).map_err(|e| Refusal::error("invalid_request", e))?;
        let mut arrays = HashMap::new();
        for (name, tensor) in file.tensors() {
            if !["q", "k", "v"].contains(&&*name) {
                return Err(Refusal::unsupported(name));
            }
            if tensor.dtype() != Dtype::F32 {
                return Err(other_type(&file));
            }
            let shape = tensor.shape().try_into().map_err(|_| {
                Refusal::error("shape_mismatch", format!("sdpa: {name}: expected rank 4"))
            })?;
            let numbers = tensor.data().chunks_exact(4);
            let numbers =
                numbers.map(|x| f32::from_le_bytes(x.try_into().expect("4 bytes"))).collect();
            arrays.insert(name, Array { shape, numbers });
        }
        for (name, value) in config.iter().filter(|(_, value)| !value.is_null()) {
            if !["scale", "causal"].contains(&&**name) && *value != json!(0) {
                return Err(Refusal::unsupported(name));
            }
        }
        let mut take = |name| {
            let missing = || Refusal::error("invalid_request", format!("inputs: expected {name}"));
            arrays.remove(name).ok_or_else(missing)
        };
        let (q, k, v) = (take("q")?, take("k")?, take("v")?);
        let ([batch, hq, _, d], [_, hkv, tk, _]) = (q.shape, k.shape);
        let fits = k.shape == [batch, hkv, tk, d] && v.shape[..3] == [batch, hkv, tk];
        if !fits || d == 0 || hkv == 0 || hq % hkv != 0 {
            let shapes =
                format!("sdpa: q {:?}, k {:?}, v {:?} do not fit", q.shape, k.shape, v.shape);
            return Err(Refusal::error("shape_mismatch", shapes));
        }
        if q.numbers.is_empty() || k.numbers.is_empty() || v.numbers.is_empty() {
            return Err(Refusal::unsupported("size.0"));
        }
        let wrong = |name| {
            move || Refusal::error("invalid_config", format!("sdpa: {name}: of another type"))
        };
        let given = |name| config.get(name).filter(|value| !value.is_null());
        let scale = given("scale").map(|value| value.as_f64().ok_or_else(wrong("scale")));
        let causal = given("causal").map(|value| value.as_bool().ok_or_else(wrong("causal")));
        Ok(Self {
            scale: scale.transpose()?.unwrap_or(1.0 / (d as f64).sqrt()) as f32,
            causal: causal.transpose()?.unwrap_or(false),
            q,
            k,
            v,
        })
    }

    /// G = Hq / Hkv.
    pub fn group(&self) -> usize {
        self.q.shape[1] / self.k.shape[1]
    }

    /// What is added to the scores of a head, (Tq, Tk), where there is anything to add.
    pub fn causal_table(&self) -> Option<Vec<f32>> {
        let (tq, tk) = (self.q.shape[2], self.k.shape[2]);
        let entry = move |i: usize, j: usize| if j <= i { 0.0 } else { f32::NEG_INFINITY };
        self.causal.then(|| (0..tq).flat_map(|i| (0..tk).map(move |j| entry(i, j))).collect())
    }
}
