//! The protocol: a line of JSON comes, a line goes.

use std::fs;
use std::hint::black_box;
use std::io::{BufRead, Write, stdin, stdout};
use std::time::Instant;

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::{Map, Value, json};

use crate::case::{Case, FEATURES, Refusal};

/// A library, and one case in its types.
pub trait Engine: Sized {
    /// What it gives, (B, Hq, Tq, Dv) in row-major order.
    type Output;

    const NAME: &'static str;
    const VERSION: &'static str;

    fn prepare(case: &Case) -> Self;

    /// What is timed.
    fn attend(&self) -> Self::Output;

    fn numbers(output: Self::Output) -> Vec<f32>;
}

/// The case that was asked for last, by its request.
struct Prepared<E> {
    key: Value,
    engine: E,
    shape: [usize; 4],
}

/// Answers until `stop` or the end of the input.
pub fn serve<E: Engine>() {
    let (mut prepared, mut stopped) = (None, false);
    for line in stdin().lock().split(b'\n').map_while(Result::ok) {
        let request: Result<Map<String, Value>, _> = serde_json::from_slice(&line);
        let mut answer = match &request {
            Ok(request) => answer::<E>(request, &mut prepared, &mut stopped),
            Err(error) => Err(Refusal::error("invalid_request", error)),
        }
        .unwrap_or_else(|Refusal(answer)| answer);
        if let Some(seq) = request.ok().and_then(|mut request| request.remove("seq")) {
            answer["seq"] = seq;
        }
        if writeln!(stdout(), "{answer}").and_then(|()| stdout().flush()).is_err() || stopped {
            return;
        }
    }
}

fn answer<E: Engine>(
    request: &Map<String, Value>,
    prepared: &mut Option<Prepared<E>>,
    stopped: &mut bool,
) -> Result<Value, Refusal> {
    match text(request, "cmd")? {
        "start" if request.get("protocol") == Some(&json!(1)) => Ok(json!({
            "status": "ok", "protocol": 1, "name": E::NAME, "language": "Rust", "version": E::VERSION,
            "runtime": format!("{} {}, composed", E::NAME, E::VERSION), "threads": 1,
            "ops": {"sdpa": {"variants": ["composed"], "dtypes": ["f32"], "features": FEATURES}},
        })),
        "start" => Err(Refusal::error("invalid_request", "protocol: expected 1")),
        "stop" => {
            *stopped = true;
            Ok(json!({"status": "ok"}))
        }
        "run" => {
            let prepared = prepare(request, prepared)?;
            write(request, prepared, prepared.engine.attend())?;
            Ok(json!({"status": "ok"}))
        }
        "bench" => bench(request, prepare(request, prepared)?),
        other => {
            let expected = format!("cmd: expected start, run, bench or stop, got {other}");
            Err(Refusal::error("invalid_request", expected))
        }
    }
}

/// The case, read only where it is not the last one.
fn prepare<'a, E: Engine>(
    request: &Map<String, Value>,
    prepared: &'a mut Option<Prepared<E>>,
) -> Result<&'a Prepared<E>, Refusal> {
    let op = text(request, "op")?;
    if op != "sdpa" {
        return Err(Refusal::unsupported(format!("op.{op}")));
    }
    if let Some(other) = request.get("variant").filter(|variant| **variant != json!("composed")) {
        return Err(Refusal::unsupported(format!(
            "variant.{}",
            other.as_str().unwrap_or_default()
        )));
    }
    if let Some(want) = request.get("want").filter(|want| **want != json!(["output"])) {
        return Err(Refusal::error(
            "invalid_request",
            format!("want: expected output, got {want}"),
        ));
    }
    let key = json!([request.get("config"), request.get("inputs"), request.get("case")]);
    if prepared.as_ref().is_none_or(|prepared| prepared.key != key) {
        *prepared = None; // frees the old arrays first
        let bytes = fs::read(text(request, "inputs")?);
        let bytes = bytes.map_err(|error| Refusal::error("invalid_request", error))?;
        let empty = Map::new();
        let config = request.get("config").and_then(Value::as_object).unwrap_or(&empty);
        let case = Case::read(config, &bytes)?;
        let [batch, hq, tq, _] = case.q.shape;
        let shape = [batch, hq, tq, case.v.shape[3]];
        *prepared = Some(Prepared { key, engine: E::prepare(&case), shape });
    }
    Ok(prepared.as_ref().expect("just made"))
}

/// A first call, calls to warm up, then samples of as many calls as make one long enough.
fn bench<E: Engine>(
    request: &Map<String, Value>,
    prepared: &Prepared<E>,
) -> Result<Value, Refusal> {
    let count = |name| request.get(name).and_then(Value::as_u64).unwrap_or(1);
    let time = |evals: u64| {
        let start = Instant::now();
        for _ in 1..evals {
            black_box(prepared.engine.attend());
        }
        let last = black_box(prepared.engine.attend());
        (u64::try_from(start.elapsed().as_nanos()).expect("less than centuries"), last)
    };
    let (first_ns, mut last) = time(1);
    (0..count("warmup")).for_each(|_| drop(time(1)));
    let (mut evals, mut samples) = (1, vec![]);
    while (samples.len() as u64) < count("samples") {
        let (took, result) = time(evals);
        last = result;
        if took < count("min_sample_ns") {
            (evals, samples) = (2 * evals, vec![]);
        } else {
            samples.push(took as f64 / evals as f64);
        }
    }
    if request.get("outputs").is_some_and(|path| !path.is_null()) {
        write(request, prepared, last)?;
    }
    Ok(json!({"status": "ok", "first_ns": first_ns, "evals": evals, "samples_ns": samples}))
}

fn write<E: Engine>(
    request: &Map<String, Value>,
    prepared: &Prepared<E>,
    output: E::Output,
) -> Result<(), Refusal> {
    let bytes: Vec<u8> = E::numbers(output).into_iter().flat_map(f32::to_le_bytes).collect();
    let view = TensorView::new(Dtype::F32, prepared.shape.to_vec(), &bytes);
    let view = view.map_err(|error| Refusal::error("internal", error))?;
    let path = text(request, "outputs")?;
    serialize_to_file([("output", view)], None, path.as_ref())
        .map_err(|error| Refusal::error("invalid_request", error))
}

fn text<'a>(request: &'a Map<String, Value>, name: &str) -> Result<&'a str, Refusal> {
    let missing = || Refusal::error("invalid_request", format!("{name}: expected a text"));
    request.get(name).and_then(Value::as_str).ok_or_else(missing)
}
