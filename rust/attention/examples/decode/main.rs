//! What a KV cache saves: one layer of multi-head attention generates T tokens in three ways, counted and timed.
//!
//! `cargo run --release --example decode -- --quick`; docs/decode.md says what it prints.

mod check;
mod ways;

use std::io::{Write, stdout};
use std::process::ExitCode;

use serde_json::json;

use check::error;
use ways::{Point, Run, Way, Weights, generate, random_weights};

const USAGE: &str = "usage: decode [--n 64,128,256,512,1024] [--width 128] [--heads 8] [--quick] \
                     [--repeats R] [--json]";

/// What the command line asks for.
struct Options {
    lengths: Vec<usize>,
    width: usize,
    heads: usize,
    repeats: usize,
    json: bool,
}

fn main() -> ExitCode {
    let failed = |status| {
        move |message| {
            eprintln!("decode: {message}");
            ExitCode::from(status)
        }
    };
    let asked = options(std::env::args().skip(1)).map_err(failed(2));
    let done = asked.and_then(|options| run(&options).map_err(failed(1)));
    done.map_or_else(|status| status, |()| ExitCode::SUCCESS)
}

/// The options, or what is wrong with them.
fn options(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut found = Options {
        lengths: vec![64, 128, 256, 512, 1024],
        width: 128,
        heads: 8,
        repeats: 1,
        json: false,
    };
    let mut lengths = None;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word}: expected a value; {USAGE}"));
        let number = |text: &str| number(&word, text);
        match word.as_str() {
            "--n" => lengths = Some(value()?.split(',').map(number).collect::<Result<_, _>>()?),
            "--width" => found.width = number(&value()?)?,
            "--heads" => found.heads = number(&value()?)?,
            "--repeats" => found.repeats = number(&value()?)?,
            "--quick" => found.lengths = vec![16, 32, 64, 128],
            "--json" => found.json = true,
            _ => return Err(format!("{word}: expected an option; {USAGE}")),
        }
    }
    found.lengths = lengths.unwrap_or(found.lengths);
    found.lengths.sort_unstable();
    found.lengths.dedup();
    if !found.width.is_multiple_of(found.heads) {
        return Err(format!(
            "--width: expected one that {} heads can share, got {}",
            found.heads, found.width
        ));
    }
    Ok(found)
}

/// An integer >= 1.
fn number(option: &str, text: &str) -> Result<usize, String> {
    let good = text.parse().ok().filter(|&n| n >= 1);
    good.ok_or(format!("{option}: expected an integer >= 1, got {text}; {USAGE}"))
}

/// Measures each way, and prints it.
fn run(options: &Options) -> Result<(), String> {
    let &Options { width, heads, json, .. } = options;
    let weights = random_weights(width).map_err(|error| error.to_string())?;
    let mut all = vec![];
    for way in Way::ALL {
        eprintln!("decode: {} ...", way.name());
        let points = measure(way, &weights, options)?;
        if json {
            points.iter().try_for_each(|point| print_line(way, point))?;
        }
        all.push(points);
    }
    if !json {
        print!(
            "One layer, width {width}, {heads} heads, Rust, f32; x n: n times the cache's.\n\n{}",
            table(&all)
        );
        if let Some(last) = all[2].last() {
            let mib = last.held as f64 / f64::from(1 << 20);
            println!(
                "\nThe cache holds {mib:.2} MiB after {} tokens; the other ways hold nothing.",
                last.tokens
            );
        }
    }
    Ok(())
}

/// One way, its seconds the least of all repeats, since noise only ever adds.
fn measure(way: Way, weights: &Weights, options: &Options) -> Result<Vec<Point>, String> {
    let of_way = |lengths: &[usize]| -> Result<Run, String> {
        generate(way, weights, options.heads, lengths).map_err(|error| error.to_string())
    };
    of_way(&[options.lengths[0].min(4)])?; // warms up
    let mut best: Vec<Point> = vec![];
    for _ in 0..options.repeats {
        let run = of_way(&options.lengths)?;
        let (off, bound) = error(&run, weights, options.heads);
        let good = off <= bound; // NaN is not
        if !good {
            return Err(format!(
                "{}: an output is off by {off:.2e}, and may be by {bound:.2e}",
                way.name()
            ));
        }
        if best.is_empty() {
            best = run.points;
            continue;
        }
        for (best, again) in best.iter_mut().zip(&run.points) {
            best.seconds = best.seconds.min(again.seconds);
        }
    }
    Ok(best)
}

/// What docs/decode.md asks for.
fn print_line(way: Way, point: &Point) -> Result<(), String> {
    let line = json!({
        "port": "rust",
        "way": way.name(),
        "tokens": point.tokens,
        "seconds": point.seconds,
        "multiply_adds": point.cost.multiply_adds,
        "moved": point.cost.moved,
        "held": point.held,
    });
    println!("{line}");
    stdout().flush().map_err(|error| error.to_string())
}

/// A row for each length and way; last, how each way grows: p in y ~ T^p, between the two longest.
fn table(all: &[Vec<Point>]) -> String {
    let mut rows = vec![
        ["T", "made again", "million mul-adds", "", "MiB moved", "", "ms", ""].map(String::from),
    ];
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let times = |x: f64| if x == 1.0 { String::new() } else { format!("x {x:.1}") };
    for (index, cache) in all[2].iter().enumerate() {
        for (way, points) in Way::ALL.into_iter().zip(all) {
            let point = &points[index];
            let (adds, best) = (point.cost.multiply_adds as f64, cache.cost.multiply_adds as f64);
            let first = way == Way::Everything;
            rows.push([
                if first { point.tokens.to_string() } else { String::new() },
                way.name().into(),
                format!("{:.1}", adds / 1e6),
                times(adds / best),
                format!("{:.1}", mib(point.cost.moved)),
                times(point.cost.moved as f64 / cache.cost.moved as f64),
                format!("{:.1}", point.seconds * 1e3),
                times(point.seconds / cache.seconds),
            ]);
        }
    }
    for (way, points) in Way::ALL.into_iter().zip(all) {
        let [.., short, long] = &points[..] else { break };
        let ln = (long.tokens as f64 / short.tokens as f64).ln();
        let grows = |of: fn(&Point) -> f64| format!("T^{:.2}", (of(long) / of(short)).ln() / ln);
        rows.push([
            if way == Way::Everything { "grows".into() } else { String::new() },
            way.name().into(),
            grows(|point| point.cost.multiply_adds as f64),
            String::new(),
            grows(|point| point.cost.moved as f64),
            String::new(),
            grows(|point| point.seconds),
            String::new(),
        ]);
    }
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0))
        .collect();
    let line =
        |row: &[String; 8]| {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(at, (cell, &width))| {
                if at < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
        };
    rows.iter().map(line).collect()
}
