//! Whether what was timed is right: a run's output at each length, held to the same layer in f64 on the same text.
//!
//! Runs in f32 feed their own last bits back to themselves, so that their texts may drift apart; but each way has to
//! make of its own text what exact arithmetic makes of it, up to an error that is bounded here for the very weights
//! and text. So two ways agree on one text within twice that.
//!
//! With u half the distance from 1 to the next number, a sum of n products comes out, in any order and with or
//! without fused multiply-adds, within γ(n) = n u / (1 - n u) times the sum of their magnitudes (Higham, "Accuracy
//! and Stability of Numerical Algorithms", 2002, section 3.1). Hats are computed values, d what they may be off by,
//! and |â| <= |a| + da:
//!
//! ```text
//! projection   a = W x              da = γ(C) |W| |x|
//! score        s = q·k / sqrt(D)    ds = (1 + γ(D + 2)) (|q| + dq)·(|k| + dk) / sqrt(D) - |q|·|k| / sqrt(D)
//!                                   (D terms, and the rounding of 1 / sqrt(D) and of its product with q)
//! exponent     s - max s            e = 2 max ds + u max(|s| + ds) · 2
//! weight       w                    w r, r = exp(2 e) (1 + γ(T + 9)) - 1: an exponential within 4 u over a sum of T
//!                                   such ones
//! output       o = Σ w v            do = (1 + r) (1 + γ(T)) Σ w (|v| + dv) - Σ w |v|
//! projection   y = W o              dy = |W| do + γ(C) |W| (|o| + do)
//! ```
//!
//! Letters: T tokens of the text, C width, D head size.

use ndarray::{Array1, Array2, ArrayRef2, Axis, s};

use super::ways::{Point, Run, Weights};

/// Half the distance from 1 to the next f32.
const U: f64 = f32::EPSILON as f64 / 2.0;

/// How far an output is from the exact one, and may be: where it comes nearest to that, or is no number.
pub fn error(run: &Run, weights: &Weights, heads: usize) -> (f64, f64) {
    let wide = weights.each_ref().map(|weight| weight.mapv(f64::from));
    let text = run.text.slice(s![0, .., ..]).mapv(f64::from); // (T, C)
    let of_point = |point: &Point| {
        let (exact, bound) = last_output(&text.slice(s![..point.tokens, ..]), &wide, heads);
        let output = point.output.iter().zip(exact);
        let off = output.map(|(&got, exact)| (f64::from(got) - exact).abs());
        off.zip(bound).collect::<Vec<_>>()
    };
    let worse = |a: (f64, f64), b: (f64, f64)| {
        let share = |(off, bound): (f64, f64)| {
            if off.is_nan() || bound.is_nan() { f64::INFINITY } else { off / bound }
        };
        if share(b) > share(a) { b } else { a }
    };
    run.points.iter().flat_map(of_point).fold((0.0, 1.0), worse)
}

fn gamma(n: usize) -> f64 {
    let nu = n as f64 * U;
    nu / (1.0 - nu)
}

/// What the layer makes of the last token of `text` (T, C), and dy: (C) each.
fn last_output(
    text: &ArrayRef2<f64>,
    [w_q, w_k, w_v, w_o]: &[Array2<f64>; 4],
    heads: usize,
) -> (Array1<f64>, Array1<f64>) {
    let (len, width) = text.dim();
    let (d, root) = (width / heads, ((width / heads) as f64).sqrt());
    let projected = |x: &ArrayRef2<f64>, w: &Array2<f64>| {
        (x.dot(&w.t()), x.abs().dot(&w.t().abs()) * gamma(width)) // a and da
    };
    let last = text.slice(s![len - 1.., ..]);
    let ((q, dq), (k, dk), (v, dv)) =
        (projected(&last, w_q), projected(text, w_k), projected(text, w_v));
    let (mut o, mut d_o) = (Array1::zeros(width), Array1::zeros(width)); // (C)
    for h in 0..heads {
        let at = s![.., h * d..(h + 1) * d];
        let (q, dq) = (q.slice(at), dq.slice(at)); // (1, D)
        let (k, dk, v, dv) = (k.slice(at), dk.slice(at), v.slice(at), dv.slice(at)); // (T, D)
        let score = (&q * &k).sum_axis(Axis(1)) / root; // (T)
        let magnitudes = ((&q.abs() + &dq) * (&k.abs() + &dk)).sum_axis(Axis(1)); // (T)
        let exact = (&q * &k).abs().sum_axis(Axis(1)); // (T)
        let d_score = (magnitudes * (1.0 + gamma(d + 2)) - exact) / root; // (T)
        let largest = |x: &Array1<f64>| x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let e = 2.0 * largest(&d_score) + 2.0 * U * largest(&(score.abs() + &d_score));
        let r = (2.0 * e).exp() * (1.0 + gamma(len + 9)) - 1.0;

        let top = largest(&score);
        let w = score.mapv(|score| (score - top).exp()); // (T)
        let w = &w / w.sum(); // (T)
        let seen = w.dot(&v.abs()); // (D)
        let of_head = s![h * d..(h + 1) * d];
        o.slice_mut(of_head).assign(&w.dot(&v));
        let most = w.dot(&(v.abs() + dv)) * ((1.0 + r) * (1.0 + gamma(len))); // (D)
        d_o.slice_mut(of_head).assign(&(most - seen));
    }
    let bound = w_o.abs().dot(&d_o) + w_o.abs().dot(&(o.abs() + &d_o)) * gamma(width);
    (w_o.dot(&o), bound)
}

#[cfg(test)]
mod tests {
    use super::super::ways::{Way, generate, random_weights};
    use super::*;

    #[test]
    fn three_ways_make_the_same_tokens() {
        let (width, heads) = (12, 3);
        let weights = random_weights(width).unwrap();
        for way in Way::ALL {
            let run = generate(way, &weights, heads, &[5, 20]).unwrap();
            let (off, bound) = error(&run, &weights, heads);
            assert!(off <= bound && 0.0 < bound && bound < 1e-2, "{way:?}: {off}, {bound}");
            // An output that is off by more than its bound, or is no number.
            let text = run.text.slice(s![0, .., ..]).mapv(f64::from);
            let wide = weights.each_ref().map(|weight| weight.mapv(f64::from));
            let (_, bounds) = last_output(&text, &wide, heads);
            for (channel, &bound) in bounds.iter().enumerate() {
                for wrong in [2.0 * bound as f32, f32::NAN, f32::INFINITY] {
                    let mut spoilt = run.clone();
                    spoilt.points[1].output[channel] += wrong;
                    let (off, bound) = error(&spoilt, &weights, heads);
                    let good = off <= bound;
                    assert!(!good, "{way:?}: {wrong} more in channel {channel}");
                }
            }
        }
    }

    #[test]
    fn counts_are_those_of_the_formulas() {
        let weights = random_weights(8).unwrap();
        let of_way = |way| generate(way, &weights, 2, &[3, 7]).unwrap().points;
        let c = 8;
        let sum = |count: fn(u64, u64) -> u64| (1..=7).map(|t| count(t, c)).sum::<u64>();
        for (way, adds) in Way::ALL.into_iter().zip([
            sum(|t, c| 4 * t * c * c + 2 * t * t * c),
            sum(|t, c| 2 * t * c * c + 2 * c * c + 2 * t * c),
            sum(|t, c| 4 * c * c + 2 * t * c),
        ]) {
            let points = of_way(way);
            assert_eq!(points[1].cost.multiply_adds, adds);
            let held = if way == Way::Cache { [3, 7].map(|t| 2 * 4 * 8 * t) } else { [0, 0] };
            assert_eq!([points[0].held, points[1].held], held);
        }
    }
}
