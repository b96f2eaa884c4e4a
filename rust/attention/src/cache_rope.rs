//! Rotary positions in a cache: when keys are turned, and how those that are held turn on.
//!
//! Rotations add up, so a key that was turned by j and then by n stands where it would at j + n. A cache may also
//! hold keys as they came, and turn all of them at every attend: more work, but a shift then moves numbers alone.
//!
//! Letters: B batch, H heads, T tokens, D head size.
//!
//! Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023, section 3.2 (positions
//! within the cache).

use ndarray::{Array2, Array4, ArrayRef4, ArrayView4, CowArray, Ix4};

use crate::cache::{Append, Sizes};
use crate::cast::{Stored, narrow, widen};
use crate::checks::check_cache_rope;
use crate::errors::Result;
use crate::rope::{Rope, further_turns, rotate, turns};
use crate::rows::Rows;

/// When the keys of a cache are turned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RopeAt {
    /// As they come; they are held so.
    #[default]
    Append,
    /// Whenever they are attended to; they are held as they came.
    Attend,
}

/// How a cache turns keys and queries, if it does.
#[derive(Debug, Clone, Default)]
pub(crate) struct CacheRope {
    rope: Option<Rope>,
    at: RopeAt,
}

impl CacheRope {
    /// For a cache of these sizes, whose constructor is `name`.
    pub(crate) fn new(name: &'static str, sizes: Sizes, rope: Rope, at: RopeAt) -> Result<Self> {
        check_cache_rope(name, sizes, &rope)?;
        Ok(Self { rope: Some(rope), at })
    }

    /// What queries go through.
    pub(crate) fn of_queries(&self) -> Option<&Rope> {
        self.rope.as_ref()
    }

    /// What keys that are held have been through.
    pub(crate) fn of_held(&self) -> Option<&Rope> {
        self.rope.as_ref().filter(|_| self.at == RopeAt::Append)
    }

    /// What keys that are held go through when they are attended to.
    pub(crate) fn of_attended(&self) -> Option<&Rope> {
        self.rope.as_ref().filter(|_| self.at == RopeAt::Attend)
    }

    /// The keys of an append, as they are to be held.
    pub(crate) fn placed<'a, S: Stored>(
        &self,
        k: &'a ArrayRef4<S>,
        rows: &Rows,
        options: &Append<'_>,
    ) -> CowArray<'a, S, Ix4> {
        let (batch, _, new, _) = k.dim();
        let counts = options.counts(batch, new);
        let start =
            (0..batch).map(|b| rows.next_of(b) - options.start(new, counts[b]) as i64).collect();
        turned(k.view(), self.of_held(), &Rows::placed(&start, new))
    }
}

/// `x` (B, H, T, D) rotated to `positions` (B, T), where there is a rope.
pub(crate) fn turned<'a, S: Stored>(
    x: ArrayView4<'a, S>,
    rope: Option<&Rope>,
    positions: &Array2<i64>,
) -> CowArray<'a, S, Ix4> {
    let Some(rope) = rope else {
        return x.into();
    };
    let (cos, sin) = turns(rope, x.dim().3, positions); // (B, T, R/2) each
    narrow::<S, _>(rotate(&widen(x), &cos, &sin, rope.interleaved)).into()
}

/// `x` (1, H, T, D), which is rotated, by `by` positions more.
pub(crate) fn further_turned<S: Stored>(x: ArrayView4<'_, S>, rope: &Rope, by: i64) -> Array4<S> {
    let positions = Array2::from_elem((1, x.dim().2), by); // (1, T)
    let (cos, sin) = further_turns(rope, x.dim().3, &positions); // (1, T, R/2) each
    narrow(rotate(&widen(x), &cos, &sin, rope.interleaved))
}
