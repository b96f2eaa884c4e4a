//! Which slots of a row stay when it may hold no more than a budget.
//!
//! ```text
//! Window          the first ones and the latest
//! HeavyHitters    those that were given most weight since they came
//! SnapKv          those that some queries, as a rule the last ones of a prompt, give most weight
//! KeyNorm         those whose keys are shortest, which models tend to look at most
//! ```
//!
//! A policy is a score for every slot. The first `sinks` and the last `recent` slots stay in any case, and of those
//! between them the ones with the highest scores. Of equal scores the lowest position stays; NaN is below every
//! number.
//!
//! Letters: B batch, Hkv key/value heads, Hq query heads, W queries, L slots of the longest row, n slots of a row, C
//! of them between sinks and recent, D head size.
//!
//! Sources: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023, section 3.2 (Window);
//! Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models", 2023,
//! section 4; Li et al., "SnapKV: LLM Knows What You Are Looking For Before Generation", 2024, section 4; Devoto et
//! al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression", 2024, section 3 (KeyNorm).

use std::cmp::Ordering;

use ndarray::{Array2, Array3, ArrayRef3, ArrayRef4, Axis};

use crate::cache::Cache;
use crate::cast::{Stored, wide};
use crate::checks::{check_attend, check_policy, check_queries};
use crate::errors::Result;
use crate::masks::Mask;
use crate::sdpa::{Sdpa, Steps};
use crate::track::per_kv_head;

/// By what the slots are chosen that stay.
#[derive(Debug, Clone, Copy)]
pub enum Policy<'a, T> {
    /// The first `sinks`, then the last budget - sinks.
    Window {
        /// How many slots stay.
        budget: Budget<'a>,
        /// How many of the first ones do.
        sinks: usize,
    },
    /// The weights that a slot was given since it was appended, in a cache that tracks them.
    HeavyHitters {
        /// How many slots stay.
        budget: Budget<'a>,
        /// How many of the first ones do in any case.
        sinks: usize,
        /// How many of the last ones do in any case.
        recent: usize,
    },
    /// The weights that some queries give a slot, then the largest among its neighbours.
    SnapKv {
        /// How many slots stay.
        budget: Budget<'a>,
        /// How many of the first ones do in any case.
        sinks: usize,
        /// How many of the last ones do in any case.
        recent: usize,
        /// (B, Hq, W, D), W >= 1: the last one stands on the last position of its row, and none sees what comes
        /// after it.
        q: &'a ArrayRef4<T>,
        /// As for sdpa.
        scale: Option<f64>,
        /// Odd: how many slots a neighbourhood has.
        pool: usize,
    },
    /// Minus the sum of the squares of a key.
    KeyNorm {
        /// How many slots stay.
        budget: Budget<'a>,
        /// How many of the first ones do in any case.
        sinks: usize,
        /// How many of the last ones do in any case.
        recent: usize,
    },
}

/// How many slots stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget<'a> {
    /// Of each row, or each head where heads hold slots of their own.
    One(usize),
    /// (Hkv): of each head, where heads hold slots of their own.
    PerHead(&'a [usize]),
}

impl Budget<'_> {
    /// That of KV head `h`.
    pub(crate) fn of(&self, h: usize) -> usize {
        match self {
            Self::One(budget) => *budget,
            Self::PerHead(budgets) => budgets[h],
        }
    }
}

impl<'a, T> Policy<'a, T> {
    /// How many slots stay, and how many of the first and of the last ones in any case.
    pub(crate) fn ends(&self) -> (Budget<'a>, usize, usize) {
        match *self {
            Self::Window { budget, sinks } => (budget, sinks, 0),
            Self::HeavyHitters { budget, sinks, recent }
            | Self::SnapKv { budget, sinks, recent, .. }
            | Self::KeyNorm { budget, sinks, recent } => (budget, sinks, recent),
        }
    }

    /// How many slots a neighbourhood has.
    pub(crate) fn pool(&self) -> usize {
        if let Self::SnapKv { pool, .. } = *self { pool } else { 1 }
    }
}

/// A cache that can go by a policy.
pub(crate) trait Evidence<S: Stored>: Cache<S> {
    /// Attention that leaves no trace, of arguments that were checked.
    fn untracked_steps(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>>;
}

/// That a cache can go by a policy. `heads`: how many budgets it may have; `None` = there is one for all heads.
pub(crate) fn check_eviction<S: Stored>(
    cache: &dyn Cache<S>,
    policy: &Policy<'_, S::Compute>,
    heads: Option<usize>,
    track: bool,
) -> Result<()> {
    check_policy("evict_by", policy, heads, track)?;
    let &Policy::SnapKv { q, scale, .. } = policy else { return Ok(()) };
    let slots = cache.rows().longest();
    check_attend("evict_by", q.dim(), cache.sizes(), slots, &causal_with::<S::Compute>(scale))?;
    check_queries("evict_by", q.dim())
}

/// How the queries of a policy look at slots.
pub(crate) fn causal_with<'a, T>(scale: Option<f64>) -> Sdpa<'a, T> {
    Sdpa { mask: Mask { causal: true, ..Mask::default() }, scale, ..Sdpa::default() }
}

/// The positions that stay in each row, ascending, for a policy that was checked. `budgets`: of each row.
pub(crate) fn positions_that_stay<S: Stored>(
    policy: &Policy<'_, S::Compute>,
    cache: &dyn Evidence<S>,
    budgets: &[usize],
) -> Result<Vec<Vec<i64>>> {
    let (scores, rows) = (slot_scores(policy, cache)?, cache.rows()); // (B, L)
    let (_, sinks, recent) = policy.ends();
    let of_row = |(b, &budget): (usize, &usize)| {
        let held = rows.row(b); // (n)
        let scores: Vec<f64> = scores.row(b).iter().take(held.len()).copied().collect(); // (n)
        let stays = slots_that_stay(&scores, budget, sinks, recent, policy.pool());
        held.iter().zip(stays).filter(|(_, stays)| *stays).map(|(&position, _)| position).collect()
    };
    Ok(budgets.iter().enumerate().map(of_row).collect())
}

/// The score of every slot, (B, L).
fn slot_scores<S: Stored>(
    policy: &Policy<'_, S::Compute>,
    cache: &dyn Evidence<S>,
) -> Result<Array2<f64>> {
    // 1. score: of each head, then added up over the heads
    let of_heads = match *policy {
        Policy::Window { .. } => return Ok(cache.rows().positions().mapv(|j| j as f64)), // (B, L)
        Policy::HeavyHitters { .. } => cache.tracked()?,
        Policy::SnapKv { q, scale, .. } => {
            let weights = cache.untracked_steps(q, &causal_with(scale))?.weights; // (B, Hq, W, L)
            per_kv_head(&weights, cache.sizes().num_kv_heads)
        }
        Policy::KeyNorm { .. } => minus_squares(&cache.read().k),
    }; // (B, Hkv, L)
    Ok(added_up(&of_heads)) // (B, L)
}

/// Minus the sum of the squares of each key (B, Hkv, L, D), from the first channel to the last: (B, Hkv, L).
fn minus_squares<S: Stored>(keys: &ArrayRef4<S>) -> Array3<f64> {
    keys.map_axis(Axis(3), |key| {
        let wide = key.iter().map(|x| wide(x.widen()));
        -wide.fold(0.0, |sum, x| sum + x * x)
    })
}

/// (B, Hkv, L) added up over the heads, from the first to the last: (B, L).
fn added_up(of_heads: &ArrayRef3<f64>) -> Array2<f64> {
    of_heads.map_axis(Axis(1), |heads| heads.iter().fold(0.0, |sum, score| sum + score))
}

/// Which slots of a row with these scores (n) stay: (n). sinks + recent <= budget, unless that is 0.
fn slots_that_stay(
    scores: &[f64],
    budget: usize,
    sinks: usize,
    recent: usize,
    pool: usize,
) -> Vec<bool> {
    let n = scores.len();
    if n <= budget || budget == 0 {
        return vec![budget > 0; n];
    }

    // 2. pool: the largest score of the neighbours that compete; f64::max passes over NaN
    let (between, reach) = (&scores[sinks..n - recent], pool / 2); // (C)
    let largest = |i: usize| {
        let neighbours =
            &between[i.saturating_sub(reach)..between.len().min(i.saturating_add(reach + 1))];
        neighbours.iter().copied().fold(f64::NAN, f64::max)
    };
    let pooled: Vec<f64> = (0..between.len()).map(largest).collect(); // (C)

    // 3. protect: the first and the last do not compete
    let mut stays: Vec<bool> = (0..n).map(|slot| slot < sinks || slot >= n - recent).collect(); // (n)

    // 4. rank: the highest first, equal ones as they stand, NaN at the end
    let mut ranked: Vec<usize> = (0..between.len()).collect(); // (C)
    ranked.sort_by(|&a, &b| highest_first(pooled[a], pooled[b])); // a stable sort

    // 5. keep: as many as the budget leaves
    ranked.iter().take(budget - sinks - recent).for_each(|slot| stays[sinks + slot] = true);
    stays
}

/// The order of two scores; zeros of either sign are equal.
fn highest_first(a: f64, b: f64) -> Ordering {
    b.partial_cmp(&a).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

#[cfg(test)]
mod tests {
    use ndarray::Array4;

    use super::*;

    const NAN: f64 = f64::NAN;

    fn stay(
        scores: &[f64],
        budget: usize,
        (sinks, recent): (usize, usize),
        pool: usize,
    ) -> Vec<usize> {
        let stays = slots_that_stay(scores, budget, sinks, recent, pool);
        (0..scores.len()).filter(|&slot| stays[slot]).collect()
    }

    #[test]
    fn the_highest_stay_and_of_equal_ones_the_first() {
        let scores = [4.0, 1.0, 3.0, 3.0, 3.0, 2.0];
        assert_eq!(stay(&scores, 3, (0, 0), 1), [0, 2, 3]);
        assert_eq!(stay(&scores, 3, (0, 1), 1), [0, 2, 5]);
        assert_eq!(stay(&scores, 3, (2, 1), 1), [0, 1, 5]);
        assert_eq!(stay(&scores, 3, (3, 0), 1), [0, 1, 2]);
        assert_eq!(stay(&[0.0, -0.0, 0.0], 2, (0, 0), 1), [0, 1]);
    }

    #[test]
    fn a_budget_may_be_none_or_more_than_there_is() {
        for (budget, want) in [(0, vec![]), (3, vec![0, 1, 2]), (usize::MAX, vec![0, 1, 2])] {
            assert_eq!(stay(&[1.0, 2.0, 3.0], budget, (0, 0), 1), want);
        }
        assert_eq!(stay(&[1.0, 2.0], 0, (1, 1), 1), [0; 0]); // an empty row protects nothing
        assert_eq!(stay(&[], 0, (0, 0), 1), [0; 0]);
    }

    #[test]
    fn nan_is_below_every_number() {
        assert_eq!(stay(&[NAN, f64::NEG_INFINITY, NAN, f64::INFINITY], 2, (0, 0), 1), [1, 3]);
        assert_eq!(stay(&[NAN, f64::NEG_INFINITY, NAN, f64::INFINITY], 3, (0, 0), 1), [0, 1, 3]);
        assert_eq!(stay(&[-NAN, NAN, 0.0], 2, (0, 0), 1), [0, 2]);
    }

    #[test]
    fn neighbours_are_those_that_compete() {
        let scores = [9.0, 0.0, 0.0, 5.0, 0.0, 0.0, 9.0];
        assert_eq!(stay(&scores, 5, (1, 1), 3), [0, 2, 3, 4, 6]); // and not 1 and 5, beside the ends
        assert_eq!(stay(&scores, 3, (0, 0), 3), [0, 1, 5]);
        assert_eq!(stay(&[NAN, 1.0, 0.0, 0.0], 2, (0, 0), 3), [0, 1]);
        assert_eq!(stay(&scores, 2, (0, 0), usize::MAX), [0, 1]);
    }

    #[test]
    fn squares_are_added_up_in_order() {
        // 2^106 is far above the ones, which are lost one by one behind it and count before it.
        let large = 2.0_f64.powi(53);
        let key = |x: [f64; 3]| minus_squares(&Array4::from_shape_fn((1, 1, 1, 3), |at| x[at.3]));
        assert_eq!(key([large, 1.0, 1.0])[[0, 0, 0]], -(large * large));
        let a = 1.0 + 2.0_f64.powi(-27); // its square is no f64, so that a fused product would differ
        assert_eq!(key([a, a, 1.0])[[0, 0, 0]], -((a * a + a * a) + 1.0));
        let heads = Array3::from_shape_vec((1, 3, 1), vec![-1.0, -large, -1.0]).unwrap();
        assert_eq!(added_up(&heads)[[0, 0]], (-1.0 - large) - 1.0);
    }
}
