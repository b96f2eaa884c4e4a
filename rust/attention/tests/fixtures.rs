//! The committed golden cases of the conformance suite, by a plain tolerance: a quick local check. The
//! harness, which derives a bound for every element, is the judge.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use ndarray::{Array, Array1, Array2, Array3, Array4, ArrayD, CowArray, Dimension};
use rosetta_attention::{
    AttentionError, Float, KvCache, Mask, MultiHeadAttention, Offset, Sdpa, Tier, sdpa_simd,
    sdpa_steps, softmax_lse,
};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// A tensor of a file, floats as the type of the case.
#[derive(Debug, Clone)]
enum Tensor<T> {
    Float(ArrayD<T>),
    Bool(ArrayD<bool>),
    Int(ArrayD<i64>),
}

type Tensors<T> = HashMap<String, Tensor<T>>;

/// Why a call that a case asks for cannot be made: the core refused it, or its types exclude it.
enum Refused {
    Code(&'static str),
    ByTypes,
}

impl From<AttentionError> for Refused {
    fn from(error: AttentionError) -> Self {
        Self::Code(error.code())
    }
}

type Answer<T> = Result<Tensors<T>, Refused>;

#[test]
fn every_committed_case() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/fixtures");
    if !fixtures.is_dir() {
        return; // the crate on its own, without the repository around it
    }
    let (mut walked, mut excluded) = (0, 0);
    for suite in ["softmax", "sdpa", "mha", "kv_cache"] {
        let folder = fixtures.join(suite);
        let manifest = fs::read(folder.join("manifest.json")).expect("a manifest");
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        for case in manifest["cases"].as_array().expect("cases") {
            for (dtype, files) in case["files"].as_object().expect("files") {
                let inputs = folder.join(files["inputs"].as_str().expect("a path"));
                if !inputs.is_file() {
                    continue; // generated on demand
                }
                let expected = files["expected"].as_str().map(|path| folder.join(path));
                let done = match dtype.as_str() {
                    "f32" => walk::<f32>(case, &inputs, expected.as_deref(), 1e-4),
                    "f64" => walk::<f64>(case, &inputs, expected.as_deref(), 1e-10),
                    _ => continue,
                };
                if done { walked += 1 } else { excluded += 1 }
            }
        }
    }
    println!("{walked} cases walked, {excluded} that the types exclude");
    assert!(walked > 100, "only {walked} cases");
}

/// Whether the case could be put into the types of the core; panics when the answer is wrong.
fn walk<T: Float>(case: &Value, inputs: &Path, expected: Option<&Path>, rtol: f64) -> bool {
    let id = case["id"].as_str().expect("an id");
    let rtol = case["native_rtol"].as_f64().map_or(rtol, |own| own.max(rtol));
    let (tensors, config) = (read::<T>(inputs), &case["config"]);
    let answers: Vec<Answer<T>> = match case["op"].as_str().expect("an op") {
        "softmax" => vec![softmax_case(&tensors)],
        "sdpa" => {
            let tiers = Tier::ALL.into_iter().filter(|tier| tier.is_available());
            let tiers = tiers.map(|tier| sdpa_case(&tensors, config, Some(tier)));
            [sdpa_case(&tensors, config, None)].into_iter().chain(tiers).collect()
        }
        "mha" => vec![mha_case(&tensors, config)],
        "kv_cache" => vec![cache_case(&tensors, case)],
        op => panic!("{id}: {op}?"),
    };
    for (rung, answer) in answers.into_iter().enumerate() {
        let got = match answer {
            Err(Refused::ByTypes) => return false,
            Err(Refused::Code(code)) => {
                assert_eq!(case["error"], code, "{id}");
                continue;
            }
            Ok(got) => got,
        };
        assert!(case["error"].is_null(), "{id}: not refused");
        for (name, want) in read::<f64>(expected.expect("expected values")) {
            match (got.get(&name), want) {
                // The naive rung, which comes first, gives everything; simd gives the output and the lse.
                (None, _) => {
                    assert!(rung > 0 && name != "output" && name != "lse", "{id}: no {name}")
                }
                (Some(Tensor::Float(got)), Tensor::Float(want)) => {
                    close(id, &name, got, &want, rtol)
                }
                (Some(Tensor::Int(got)), Tensor::Int(want)) => assert_eq!(got, want, "{id} {name}"),
                (Some(_), _) => panic!("{id} {name}: another type"),
            }
        }
    }
    true
}

fn close<T: Float>(id: &str, name: &str, got: &ArrayD<T>, want: &ArrayD<f64>, rtol: f64) {
    assert_eq!(got.shape(), want.shape(), "{id} {name}");
    let largest = want.iter().filter(|x| x.is_finite()).fold(0.0, |m: f64, x| m.max(x.abs()));
    for (got, &want) in got.iter().zip(want) {
        let got = got.to_f64().expect("a number");
        let same = got == want || (got.is_nan() && want.is_nan());
        let near = (got - want).abs() <= rtol * (1.0 + largest);
        assert!(same || near, "{id} {name}: got {got}, want {want}");
    }
}

// Calls

fn softmax_case<T: Float>(tensors: &Tensors<T>) -> Answer<T> {
    let (weights, lse) = softmax_lse(float(tensors, "x")?.ok_or(Refused::ByTypes)?, None)?;
    Ok(HashMap::from([
        ("output".into(), Tensor::Float(weights)),
        ("lse".into(), Tensor::Float(lse)),
    ]))
}

fn sdpa_case<T: Float>(tensors: &Tensors<T>, config: &Value, tier: Option<Tier>) -> Answer<T> {
    let (q, k, v) = (rank_4(tensors, "q")?, rank_4(tensors, "k")?, rank_4(tensors, "v")?);
    with_options(tensors, config, |options| {
        if let Some(tier) = tier {
            let (output, lse) = sdpa_simd(&q, &k, &v, options, Some(tier))?;
            return Ok(HashMap::from([entry("output", output), entry("lse", lse)]));
        }
        let steps = sdpa_steps(&q, &k, &v, options)?;
        Ok(HashMap::from([
            entry("output", steps.output),
            entry("weights", steps.weights),
            entry("lse", steps.lse),
            entry("scores", steps.scores),
            entry("capped", steps.capped),
            entry("biased", steps.biased),
        ]))
    })
}

fn mha_case<T: Float>(tensors: &Tensors<T>, config: &Value) -> Answer<T> {
    let rank_2 = |name| -> Result<CowArray<'_, T, _>, Refused> {
        let w: Array2<T> = ranked(tensors, name)?.ok_or(Refused::ByTypes)?;
        Ok(w.into())
    };
    let rank_1 = |name| -> Result<Option<CowArray<'_, T, _>>, Refused> {
        let b: Option<Array1<T>> = ranked(tensors, name)?;
        Ok(b.map(Into::into))
    };
    let count = |name: &str| match &config[name] {
        Value::Null => Ok(None),
        n => n.as_u64().map(|n| Some(n as usize)).ok_or(Refused::ByTypes),
    };
    let layer = MultiHeadAttention {
        w_q: rank_2("w_q")?,
        w_k: rank_2("w_k")?,
        w_v: rank_2("w_v")?,
        w_o: rank_2("w_o")?,
        b_q: rank_1("b_q")?,
        b_k: rank_1("b_k")?,
        b_v: rank_1("b_v")?,
        b_o: rank_1("b_o")?,
        num_heads: count("num_heads")?.ok_or(Refused::ByTypes)?,
        num_kv_heads: count("num_kv_heads")?,
    };
    let x: Array3<T> = ranked(tensors, "x")?.ok_or(Refused::ByTypes)?;
    let context: Option<Array3<T>> = ranked(tensors, "context")?;
    with_options(tensors, config, |options| {
        let steps = layer.steps(&x, context.as_deref(), options)?;
        Ok(HashMap::from([
            entry("output", steps.output),
            entry("weights", steps.weights),
            entry("lse", steps.lse),
        ]))
    })
}

/// A script of steps; its codes are compared here.
fn cache_case<T: Float>(tensors: &Tensors<T>, case: &Value) -> Answer<T> {
    let config = &case["config"];
    let size = |name: &str| config[name].as_u64().map(|n| n as usize).ok_or(Refused::ByTypes);
    let optional =
        |name: &str| if config[name].is_null() { Ok(None) } else { size(name).map(Some) };
    let (d, dv, capacity) = (size("head_dim")?, optional("value_dim")?, optional("capacity")?);
    let (batch, heads) = (size("batch")?, size("num_kv_heads")?);
    let mut cache = KvCache::<T>::new(batch, heads, d, dv.unwrap_or(d), capacity)?;
    let (mut written, mut codes) = (HashMap::new(), vec![]);
    for step in config["steps"].as_array().ok_or(Refused::ByTypes)? {
        match cache_step(&mut cache, tensors, step) {
            Ok(more) => {
                written.extend(more);
                codes.push("ok");
            }
            Err(Refused::Code(code)) => codes.push(code),
            Err(Refused::ByTypes) => return Err(Refused::ByTypes),
        }
    }
    let all_ok = vec!["ok"; codes.len()];
    let want: Option<Vec<_>> =
        case["steps"].as_array().map(|s| s.iter().filter_map(Value::as_str).collect());
    assert_eq!(codes, want.unwrap_or(all_ok), "{}", case["id"]);
    Ok(written)
}

fn cache_step<T: Float>(cache: &mut KvCache<T>, tensors: &Tensors<T>, step: &Value) -> Answer<T> {
    let named = |field: &str| step[field].as_str().unwrap_or_default();
    match named("do") {
        "append" => {
            let lengths = ints(tensors, named("lengths"))?;
            cache.append(
                &rank_4(tensors, named("k"))?,
                &rank_4(tensors, named("v"))?,
                lengths.as_deref(),
            )?;
        }
        "attend" => {
            // The tensors that the step names, under the names that sdpa has for them.
            let mut renamed: Tensors<T> = HashMap::new();
            for field in ["q", "mask", "bias", "q_offset"] {
                if let Some(tensor) = tensors.get(named(field)) {
                    renamed.insert(field.into(), tensor.clone());
                }
            }
            let q = rank_4(&renamed, "q")?;
            return with_options(&renamed, step, |options| {
                let steps = cache.attend_steps(&q, options)?;
                let out = entry(named("out"), steps.output);
                let lse = step["lse"].as_str().map(|name| entry(name, steps.lse));
                Ok([out].into_iter().chain(lse).collect())
            });
        }
        "truncate" => {
            let lengths = step["lengths"].as_array().ok_or(Refused::ByTypes)?;
            let lengths: Option<Vec<i64>> = lengths.iter().map(Value::as_i64).collect();
            cache.truncate(&lengths.ok_or(Refused::ByTypes)?)?;
        }
        "reset" => cache.reset(),
        "read" => {
            let ((k, v, lengths), out) = (cache.read(), named("out"));
            return Ok(HashMap::from([
                entry(&format!("{out}.k"), k),
                entry(&format!("{out}.v"), v),
                (format!("{out}.lengths"), Tensor::Int(lengths.into_dyn())),
            ]));
        }
        other => panic!("a step {other}?"),
    }
    Ok(HashMap::new())
}

/// Calls `call` with the options of a config and of tensors of fixed names.
fn with_options<T: Float>(
    tensors: &Tensors<T>,
    config: &Value,
    call: impl FnOnce(&Sdpa<'_, T>) -> Answer<T>,
) -> Answer<T> {
    let number = |name: &str| match &config[name] {
        Value::Null => Ok(None),
        value => value.as_f64().map(Some).ok_or(Refused::ByTypes),
    };
    let side = |side: &Value| match side {
        Value::Null => Ok(None),
        side => side.as_u64().map(|n| Some(n as usize)).ok_or(Refused::ByTypes),
    };
    let window = match config["window"].as_array().map(Vec::as_slice) {
        None if config["window"].is_null() => None,
        Some([left, right]) => Some((side(left)?, side(right)?)),
        _ => return Err(Refused::ByTypes),
    };
    let causal = match &config["causal"] {
        Value::Null => false,
        value => value.as_bool().ok_or(Refused::ByTypes)?,
    };
    let keep = match tensors.get("mask") {
        None => None,
        Some(Tensor::Bool(keep)) => Some(keep),
        Some(_) => return Err(Refused::ByTypes),
    };
    let (lengths, offsets) = (ints(tensors, "kv_lengths")?, ints(tensors, "q_offset")?);
    let q_offset = match (&config["q_offset"], &offsets) {
        (Value::Null | Value::String(_), None) => None,
        (Value::Null | Value::String(_), Some(offsets)) => Some(Offset::PerRow(offsets)),
        (value, None) => Some(Offset::One(value.as_i64().ok_or(Refused::ByTypes)?)),
        (_, Some(_)) => return Err(Refused::ByTypes),
    };
    let sinks: Option<Array1<T>> = ranked(tensors, "sinks")?;
    let mask = Mask {
        keep: keep.map(|keep| &**keep),
        causal,
        window,
        kv_lengths: lengths.as_deref(),
        q_offset,
    };
    call(&Sdpa {
        mask,
        bias: float(tensors, "bias")?.map(|bias| &**bias),
        scale: number("scale")?,
        softcap: number("softcap")?,
        sinks: sinks.as_deref(),
    })
}

// Tensors

fn entry<T, D: Dimension>(name: &str, x: Array<T, D>) -> (String, Tensor<T>) {
    (name.into(), Tensor::Float(x.into_dyn()))
}

fn float<'a, T>(tensors: &'a Tensors<T>, name: &str) -> Result<Option<&'a ArrayD<T>>, Refused> {
    match tensors.get(name) {
        None => Ok(None),
        Some(Tensor::Float(x)) => Ok(Some(x)),
        Some(_) => Err(Refused::ByTypes),
    }
}

fn ranked<T: Float, D: Dimension>(
    tensors: &Tensors<T>,
    name: &str,
) -> Result<Option<Array<T, D>>, Refused> {
    let x = float(tensors, name)?.map(|x| x.clone().into_dimensionality());
    x.transpose().map_err(|_| Refused::ByTypes)
}

fn rank_4<T: Float>(tensors: &Tensors<T>, name: &str) -> Result<Array4<T>, Refused> {
    ranked(tensors, name)?.ok_or(Refused::ByTypes)
}

fn ints<T>(tensors: &Tensors<T>, name: &str) -> Result<Option<Array1<i64>>, Refused> {
    match tensors.get(name) {
        None => Ok(None),
        Some(Tensor::Int(x)) => {
            x.clone().into_dimensionality().map(Some).map_err(|_| Refused::ByTypes)
        }
        Some(_) => Err(Refused::ByTypes),
    }
}

/// Every tensor whose element type is the case's, bool or i64; a case with another is not for these types.
fn read<T: Float>(path: &Path) -> Tensors<T> {
    let bytes = fs::read(PathBuf::from(path)).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let own = if T::epsilon().to_f64() == Some(f64::EPSILON) { Dtype::F64 } else { Dtype::F32 };
    let mut tensors = HashMap::new();
    for (name, view) in file.tensors() {
        let (shape, data) = (view.shape().to_vec(), view.data());
        let wide = |b: &[u8]| b.try_into().expect("8 bytes");
        let tensor = match view.dtype() {
            Dtype::F32 if own == Dtype::F32 => {
                let number = |b: &[u8]| f32::from_le_bytes(b.try_into().expect("4 bytes"));
                Tensor::Float(array(shape, data.chunks(4).map(|b| T::from_f64(number(b).into()))))
            }
            Dtype::F64 if own == Dtype::F64 => Tensor::Float(array(
                shape,
                data.chunks(8).map(|b| T::from_f64(f64::from_le_bytes(wide(b)))),
            )),
            Dtype::I64 => {
                Tensor::Int(array(shape, data.chunks(8).map(|b| i64::from_le_bytes(wide(b)))))
            }
            // Of a wrong type on purpose: as something that no float argument takes.
            _ => Tensor::Bool(array(
                shape.clone(),
                (0..shape.iter().product()).map(|i| data.get(i) == Some(&1)),
            )),
        };
        tensors.insert(name, tensor);
    }
    tensors
}

fn array<U>(shape: Vec<usize>, elements: impl Iterator<Item = U>) -> ArrayD<U> {
    ArrayD::from_shape_vec(shape, elements.collect()).expect("as many as the shape says")
}
