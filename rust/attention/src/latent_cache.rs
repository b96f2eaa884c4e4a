//! The latent KV cache: one latent and one rotary key a token, which all heads share.
//!
//! ```text
//! score = scale · (q[..R] · latent + q[R..] · rope_key),   output = Σ weight · latent
//! ```
//!
//! So it is a cache of one key/value head whose keys are [latent, rope_key], and whose values are the latents
//! themselves: one block of memory, and values that are a part of the keys. A token takes R + Dr numbers,
//! whatever the count of heads.
//!
//! Letters: B batch, H query heads, T new positions, Tq queries, L longest row, R size of the latent, Dr of the
//! rotary key.
//!
//! Source: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1 and appendix C (multi-head latent attention).

use ndarray::{ArrayRef4, Axis, concatenate, s};

use crate::allocation::Purpose;
use crate::cache::{Append, Cache, Held, Sizes, Slots, Stats, checked_index};
use crate::cache_content::{
    Column, Contents, Description, Entries, array_from_bytes, array_to_bytes,
};
use crate::cache_rope::CacheRope;
use crate::cast::Stored;
use crate::checks::{
    check_latent_append, check_latent_config, check_no_tokens, check_room, check_truncate,
    check_whole_rows,
};
use crate::errors::Result;
use crate::memory::Memory;
use crate::rows::Rows;
use crate::sdpa::{Sdpa, Steps};

/// Latents and rotary keys. As a [`Cache`] it has one head of keys of R + Dr channels, and values of R; what it
/// is given as `k` is the latents (B, 1, T, R), and as `v` the rotary keys (B, 1, T, Dr).
#[derive(Debug, Clone)]
pub struct LatentCache<S> {
    tokens: Memory<S>, // (B, 1, room, R + Dr)
    rows: Rows,
    latent_dim: usize,
    rope_dim: usize,
    capacity: Option<usize>,
}

impl<S: Stored> LatentCache<S> {
    /// An empty cache. `capacity`: most positions a row may hold; `None` = grows by doubling.
    ///
    /// # Errors
    /// `InvalidConfig` when `latent_dim` is 0, and for a cache of more than 2^53 numbers.
    pub fn new(
        batch: usize,
        latent_dim: usize,
        rope_dim: usize,
        capacity: Option<usize>,
    ) -> Result<Self> {
        check_latent_config("latent_cache", batch, (latent_dim, rope_dim), capacity)?;
        let (purpose, room) = (Purpose::option("latent_cache", "capacity"), capacity.unwrap_or(0));
        Ok(Self {
            tokens: Memory::new(purpose, (batch, 1, room, latent_dim + rope_dim))?,
            rows: Rows::new(purpose, batch)?,
            latent_dim,
            rope_dim,
            capacity,
        })
    }
}

impl<S: Stored> Cache<S> for LatentCache<S> {
    fn sizes(&self) -> Sizes {
        Sizes {
            batch: self.rows.batch(),
            num_kv_heads: 1,
            head_dim: self.latent_dim + self.rope_dim,
            value_dim: self.latent_dim,
        }
    }

    fn rows(&self) -> &Rows {
        &self.rows
    }

    fn check_append(
        &self,
        latent: &ArrayRef4<S>,
        rope_key: &ArrayRef4<S>,
        options: &Append<'_>,
    ) -> Result<()> {
        let (batch, dims) = (self.rows.batch(), (self.latent_dim, self.rope_dim));
        check_latent_append("append", latent.dim(), rope_key.dim(), options, batch, dims)?;
        check_no_tokens("append", options)?;
        let counts = options.counts(batch, latent.dim().2); // (B)
        check_room("append", self.longest_after(&counts), self.capacity)
    }

    fn append(
        &mut self,
        latent: &ArrayRef4<S>,
        rope_key: &ArrayRef4<S>,
        options: &Append<'_>,
    ) -> Result<()> {
        // 1. check: everything, before anything is changed
        self.check_append(latent, rope_key, options)?;
        let counts = options.counts(self.rows.batch(), latent.dim().2); // (B)

        // 2. write: both in one slot, side by side
        self.tokens.grow(Purpose::append(), self.longest_after(&counts))?;
        let tokens = concatenate![Axis(3), latent.view(), rope_key.view()]; // (B, 1, T, R + Dr)
        for (b, &count) in counts.iter().enumerate() {
            self.tokens.write(b, self.rows.row(b).len(), options.taken(&tokens, b, count));
        }
        self.rows.advance(&counts);
        Ok(())
    }

    fn attend_steps(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>> {
        self.check_attend(q.dim(), self.rows.longest(), options)?;
        let start = self.rows.align(q.dim().2, options.mask.q_offset); // (B)

        // 3. attend: the values are a part of the keys
        let keys = self.tokens.view(self.rows.longest()); // (B, 1, L, R + Dr)
        let values = keys.slice_move(s![.., .., .., ..self.latent_dim]); // (B, 1, L, R)
        Slots::new(keys, values, &self.rows, &CacheRope::default()).attend(
            q,
            &start,
            options,
            |_, _| true,
        )
    }

    fn truncate(&mut self, lengths: &[i64]) -> Result<()> {
        check_truncate("truncate", lengths, &self.rows.lengths())?;
        self.rows.truncate(lengths);
        Ok(())
    }

    fn reset(&mut self) {
        self.rows.clear();
    }

    fn read(&self) -> Held<S> {
        // 4. read: the two apart again
        let lengths = self.rows.lengths(); // (B)
        let tokens = self.tokens.read(self.rows.longest(), &lengths); // (B, 1, L, R + Dr)
        Held {
            k: tokens.slice(s![.., .., .., ..self.latent_dim]).to_owned(), // (B, 1, L, R)
            v: tokens.slice(s![.., .., .., self.latent_dim..]).to_owned(), // (B, 1, L, Dr)
            positions: self.rows.positions(),                              // (B, L)
            lengths,
        }
    }

    fn reorder(&mut self, index: &[i64]) -> Result<()> {
        let index = checked_index(index, self.rows.batch())?;
        self.tokens.reorder(&index);
        self.rows.reorder(&index);
        Ok(())
    }

    fn fork(&self) -> Box<dyn Cache<S>> {
        Box::new(self.clone())
    }

    fn stats(&self) -> Stats {
        self.rows.stats(self.tokens.slot_bytes())
    }

    fn describe(&self) -> Description {
        Description::new::<S>("latent", self.rows.batch())
            .with("latent_dim", self.latent_dim)
            .with("rope_dim", self.rope_dim)
    }

    fn columns(&self) -> Vec<Column> {
        let entries = Entries::Slots;
        let column = |name, width| Column {
            name,
            dtype: S::DTYPE,
            heads: None,
            entries,
            width: Some(width),
        };
        vec![column("latent", self.latent_dim), column("rope_key", self.rope_dim)]
    }

    fn contents(&self) -> Contents {
        let held = self.read();
        vec![array_to_bytes(&held.k), array_to_bytes(&held.v)]
    }

    fn restore(&mut self, rows: Rows, contents: &Contents) -> Result<()> {
        check_whole_rows("load", &rows)?;
        check_room("load", rows.longest(), self.capacity)?;
        let shape = |n| (rows.batch(), 1, rows.longest(), n);
        let latent = array_from_bytes::<S>(&contents[0], shape(self.latent_dim));
        let rope_key = array_from_bytes::<S>(&contents[1], shape(self.rope_dim));
        let tokens = concatenate![Axis(3), latent, rope_key]; // (B, 1, L, R + Dr)
        self.tokens = Memory::holding(Purpose::load(), tokens, self.capacity.unwrap_or(0))?;
        self.rows = rows;
        Ok(())
    }
}
