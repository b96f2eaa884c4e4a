//! Policies of eviction, and what a cache needs to be forgotten by them.

use super::{Dim4, InvalidConfig, ShapeMismatch, require};
use crate::errors::Result;
use crate::eviction::{Budget, Policy};

/// That there are weights to speak of.
pub(crate) fn check_tracking(name: &'static str, track: bool) -> Result<()> {
    require(
        track,
        InvalidConfig,
        name,
        "track",
        "true, for the weights that slots were given",
        track,
    )
}

/// The numbers of a policy. `heads`: how many budgets it may have; `None` = there is one for all heads.
pub(crate) fn check_policy<T>(
    name: &'static str,
    policy: &Policy<'_, T>,
    heads: Option<usize>,
    track: bool,
) -> Result<()> {
    let (budget, sinks, recent) = policy.ends();
    let protected = sinks.saturating_add(recent);
    let fits = |slots: usize| {
        let expected = format_args!("0, or sinks + recent = {protected} or more");
        require(slots == 0 || protected <= slots, InvalidConfig, name, "budget", expected, slots)
    };
    match budget {
        Budget::One(slots) => fits(slots)?,
        Budget::PerHead(budgets) => {
            let expected = "one integer for all heads of a row";
            require(heads.is_some(), InvalidConfig, name, "budget", expected, "several")?;
            let heads = heads.unwrap_or_default();
            let expected = format_args!("{heads} integers, one for each head");
            require(
                budgets.len() == heads,
                ShapeMismatch,
                name,
                "budget",
                expected,
                budgets.len(),
            )?;
            budgets.iter().try_for_each(|&slots| fits(slots))?;
        }
    }
    let pool = policy.pool();
    require(pool % 2 == 1, InvalidConfig, name, "pool", "an odd integer", pool)?;
    if let Policy::HeavyHitters { .. } = policy { check_tracking(name, track) } else { Ok(()) }
}

/// Queries (B, Hq, W, D), of which there is one.
pub(crate) fn check_queries(name: &'static str, q: Dim4) -> Result<()> {
    require(q.2 >= 1, ShapeMismatch, name, "q", "at least one query", q.2)
}
