//! The softmax of a tile, a block of keys at a time.
//!
//! What a block does to the rows is known from the largest score of each, which the product leaves behind; so a score is
//! touched once more only, when it becomes an exponential. Everything is vertical: a row is a lane.
//!
//! Every function is inlined into one that was compiled for the instruction set of `V`.

#![allow(clippy::needless_range_loop, reason = "constant index loops unroll into registers")]

use super::exp::{exp, exp_normal};
use super::kernel::num;
use super::lanes::Lanes;
use super::vectors::Vectors;

/// The largest and the smallest score of each row in a block of keys, NaN aside.
#[derive(Clone, Copy)]
pub(super) struct Extremes<V, const M: usize> {
    highest: [V; M],
    lowest: [V; M],
}

impl<V: Lanes, const M: usize> Extremes<V, M> {
    /// Of no score at all.
    ///
    /// # Safety
    /// The processor has the instruction set of `V`.
    #[inline(always)]
    pub(super) unsafe fn none() -> Self {
        // SAFETY: as for this function.
        unsafe {
            Self {
                highest: [V::splat(num(f64::NEG_INFINITY)); M],
                lowest: [V::splat(num(f64::INFINITY)); M],
            }
        }
    }

    /// Takes a register of scores in; drops a NaN, which the sum of the exponentials finds again.
    #[inline(always)]
    pub(super) fn see(&mut self, m: usize, scores: V) {
        self.highest[m] = scores.max(self.highest[m]);
        self.lowest[m] = scores.min(self.lowest[m]);
    }
}

/// The extremes of scores (keys, R) that have changed since `scores`.
///
/// # Safety
/// The processor has the instruction set of `V`, and `scores` is a multiple of R long.
#[inline(always)]
pub(super) unsafe fn extremes<V: Lanes, const M: usize>(scores: &[V::Scalar]) -> Extremes<V, M> {
    // SAFETY: a line of R numbers is M registers; the caller vouches for the instruction set.
    unsafe {
        let mut extremes = Extremes::none();
        for line in scores.chunks_exact(M * V::COUNT) {
            for m in 0..M {
                extremes.see(m, V::load(line.as_ptr().add(m * V::COUNT)));
            }
        }
        extremes
    }
}

/// What the scores of a block do to the rows that have seen others: brings `top` (R), the largest score without the
/// sink, up to date, rescales `total` (R), the sum of the exponentials without that of the sink, and writes to
/// `factors` (R) what the weighted sums so far must be multiplied by.
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn advance<V: Lanes, const M: usize>(
    extremes: Extremes<V, M>,
    sinks: &[V::Scalar],
    top: &mut [V::Scalar],
    total: &mut [V::Scalar],
    factors: &mut [V::Scalar],
) -> Block<V, M> {
    let width = M * V::COUNT;
    debug_assert!(sinks.len() == width && top.len() == width && total.len() == width);
    debug_assert!(factors.len() == width);
    // SAFETY: m < M; the caller vouches for the sizes and the instruction set.
    unsafe {
        let (zero, one) = (V::splat(num(0.0)), V::splat(num(1.0)));
        let hidden = V::splat(num(f64::NEG_INFINITY));
        let far = V::splat(<V::Scalar as Vectors>::EXP.normal);
        let mut block = Block { shifts: [zero; M], hides: false, reaches: false, rescales: false };
        for m in 0..M {
            let at = m * V::COUNT;
            let old = V::load(top.as_ptr().add(at));
            let new = extremes.highest[m].max(old);
            let step = Step::new(V::load(sinks.as_ptr().add(at)), old, new);
            new.store(top.as_mut_ptr().add(at));
            step.factor.store(factors.as_mut_ptr().add(at));
            V::load(total.as_ptr().add(at)).mul(step.factor).store(total.as_mut_ptr().add(at));
            block.shifts[m] = step.shift;
            block.hides |= extremes.lowest[m].any_equal(hidden);
            block.reaches |= far.max(extremes.lowest[m].sub(step.shift)).any_equal(far);
            block.rescales |= step.factor.select_equal(one, zero, one).any_equal(one);
        }
        block
    }
}

/// What is known of a block of keys before it is exponentiated.
pub(super) struct Block<V, const M: usize> {
    /// What the exponentials are relative to.
    shifts: [V; M],
    /// Whether a slot is hidden.
    pub hides: bool,
    /// Whether a score is so far below the largest that its exponential is no normal number, or hidden.
    reaches: bool,
    /// Whether a factor is not 1.
    pub rescales: bool,
}

/// Turns scores (keys, R) into exp(score - shift), and adds them to `total` (R).
///
/// A hidden slot, -inf, becomes -0. It adds nothing to any sum, and its sign tells it from a visible
/// slot whose exponential is too small for the type.
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn exponentials<V: Lanes, const M: usize>(
    scores: &mut [V::Scalar],
    block: &Block<V, M>,
    total: &mut [V::Scalar],
) {
    // SAFETY: as for this function.
    unsafe {
        if block.reaches {
            exponentials_of::<V, M, true>(scores, block, total);
        } else {
            exponentials_of::<V, M, false>(scores, block, total);
        }
    }
}

/// `REACHES`: some slot may be hidden, or far below the largest.
///
/// # Safety
/// As for `exponentials`.
#[inline(always)]
unsafe fn exponentials_of<V: Lanes, const M: usize, const REACHES: bool>(
    scores: &mut [V::Scalar],
    block: &Block<V, M>,
    total: &mut [V::Scalar],
) {
    debug_assert!(total.len() == M * V::COUNT);
    // SAFETY: a line of R numbers is M registers; the caller vouches for the instruction set.
    unsafe {
        let hidden = V::splat(num(f64::NEG_INFINITY));
        let mut totals = [hidden; M];
        for m in 0..M {
            totals[m] = V::load(total.as_ptr().add(m * V::COUNT));
        }
        for line in scores.chunks_exact_mut(M * V::COUNT) {
            for m in 0..M {
                let slot = line.as_mut_ptr().add(m * V::COUNT);
                let x = V::load(slot);
                let below = x.sub(block.shifts[m]);
                let e = if REACHES {
                    x.select_equal(hidden, V::splat(num(-0.0)), exp(below))
                } else {
                    exp_normal(below)
                };
                e.store(slot);
                totals[m] = totals[m].add(e);
            }
        }
        for m in 0..M {
            totals[m].store(total.as_mut_ptr().add(m * V::COUNT));
        }
    }
}

/// What a block of keys does to the running softmax of its rows.
pub(super) struct Step<V> {
    /// What the exponentials are relative to.
    pub shift: V,
    /// What the sums so far must be multiplied by.
    pub factor: V,
}

impl<V: Lanes> Step<V> {
    /// `old` and `new`: the largest score before and after this block.
    ///
    /// # Safety
    /// The processor has the instruction set of `V`.
    #[inline(always)]
    pub(super) unsafe fn new(sink: V, old: V, new: V) -> Self {
        // SAFETY: as for this function.
        unsafe {
            let hidden = V::splat(num(f64::NEG_INFINITY));
            let (before, now) = (sink.max(old), sink.max(new));
            let shift = now.select_equal(hidden, V::splat(num(0.0)), now); // -inf - -inf is NaN
            // Where nothing changed nothing is multiplied, so that an infinite sink leaves an empty row 0.
            let factor = before.select_equal(now, V::splat(num(1.0)), exp(before.sub(shift)));
            Self { shift, factor }
        }
    }
}

/// `sums` (n, R) times `factors` (R).
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn rescale<V: Lanes, const M: usize>(
    sums: &mut [V::Scalar],
    factors: &[V::Scalar],
) {
    debug_assert!(factors.len() == M * V::COUNT);
    for lanes in sums.chunks_exact_mut(M * V::COUNT) {
        for at in (0..M * V::COUNT).step_by(V::COUNT) {
            // SAFETY: at + COUNT <= M · COUNT; the caller vouches for the instruction set.
            unsafe {
                let sum = V::load(lanes.as_ptr().add(at));
                sum.mul(V::load(factors.as_ptr().add(at))).store(lanes.as_mut_ptr().add(at));
            }
        }
    }
}

/// Divides `sums` (n, R) by `divisors` (R), each of which is 1, more, or NaN.
///
/// A division takes a processor as long as 16 products. So a quotient is the product with the reciprocal, corrected by
/// what it leaves over: rounded as a division would be. Source: Markstein, "Computation of elementary functions on the
/// IBM RISC System/6000 processor", 1990. Where a sum is infinite nothing sensible is left over, and the product stands.
/// What is left over is known only to a product that is fused with its sum.
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn divide<V: Lanes, const M: usize>(
    sums: &mut [V::Scalar],
    divisors: &[V::Scalar],
) {
    debug_assert!(divisors.len() == M * V::COUNT);
    // SAFETY: m < M, a line of R numbers is M registers; the caller vouches for the instruction set.
    unsafe {
        let (zero, one) = (V::splat(num(0.0)), V::splat(num(1.0)));
        let (mut negative, mut reciprocals) = ([zero; M], [zero; M]);
        for m in 0..M {
            let divisor = V::load(divisors.as_ptr().add(m * V::COUNT));
            (negative[m], reciprocals[m]) = (zero.sub(divisor), one.div(divisor));
        }
        for line in sums.chunks_exact_mut(M * V::COUNT) {
            for m in 0..M {
                let slot = line.as_mut_ptr().add(m * V::COUNT);
                let sum = V::load(slot);
                let quotient = if V::FUSED {
                    let product = sum.mul(reciprocals[m]);
                    let left = product.mul_add(negative[m], sum);
                    let quotient = left.mul_add(reciprocals[m], product);
                    quotient.select_equal(quotient, quotient, product)
                } else {
                    sum.div(V::load(divisors.as_ptr().add(m * V::COUNT)))
                };
                quotient.store(slot);
            }
        }
    }
}
