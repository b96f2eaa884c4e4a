//! Policies of eviction, from Python to the core.

use ndarray::ArrayRef4;
use pyo3::prelude::*;
use rosetta_attention::AttentionError::InvalidConfig;
use rosetta_attention::{Budget, Policy};

use crate::arguments::{integer, optional_number, size};
use crate::arrays::Object;
use crate::errors::refuse;

/// The function whose arguments they are.
pub const NAME: &str = "evict_by";

/// The name of the policy's class, budget, sinks, recent, q, scale, pool; what the class does not have is as if absent.
pub type PolicyObjects<'py> =
    (String, Object<'py>, Object<'py>, Object<'py>, Object<'py>, Object<'py>, Object<'py>);

/// A policy of the Python package.
pub struct PolicyArguments {
    class: String,
    budget: Budgets,
    sinks: usize,
    recent: usize,
    scale: Option<f64>,
    pool: usize,
}

/// As they came.
enum Budgets {
    One(usize),
    PerHead(Vec<usize>),
}

impl PolicyArguments {
    pub fn extract(
        (class, budget, sinks, recent, _, scale, pool): &PolicyObjects<'_>,
    ) -> PyResult<Self> {
        Ok(Self {
            class: class.clone(),
            sinks: size(NAME, "sinks", sinks, 0)?,
            recent: size(NAME, "recent", recent, 0)?,
            budget: budgets(budget)?,
            pool: size(NAME, "pool", pool, 1)?,
            scale: optional_number(NAME, "scale", scale)?,
        })
    }

    /// The policy, with its queries.
    pub fn policy<'a, T>(&'a self, q: Option<&'a ArrayRef4<T>>) -> Policy<'a, T> {
        let budget = match &self.budget {
            Budgets::One(budget) => Budget::One(*budget),
            Budgets::PerHead(budgets) => Budget::PerHead(budgets),
        };
        let &Self { sinks, recent, scale, pool, .. } = self;
        match (self.class.as_str(), q) {
            ("Window", _) => Policy::Window { budget, sinks },
            ("HeavyHitters", _) => Policy::HeavyHitters { budget, sinks, recent },
            ("SnapKV", Some(q)) => Policy::SnapKv { budget, sinks, recent, q, scale, pool },
            ("KeyNorm", _) => Policy::KeyNorm { budget, sinks, recent },
            (class, _) => unreachable!("{class}: the package lets no other class, and q, through"),
        }
    }
}

/// An integer >= 0, or a list of them.
fn budgets(x: &Object<'_>) -> PyResult<Budgets> {
    if integer(x).is_some() {
        return Ok(Budgets::One(size(NAME, "budget", x, 0)?));
    }
    let bad = || refuse(x.py(), InvalidConfig, NAME, "budget", "an integer or a list of them", x);
    let items: Vec<Object<'_>> = x.extract().map_err(|_| bad())?;
    items
        .iter()
        .map(|item| size(NAME, "budget", item, 0))
        .collect::<PyResult<_>>()
        .map(Budgets::PerHead)
}
