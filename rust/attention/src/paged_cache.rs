//! The paged KV cache: rows are tables of pages, which they take from a pool when they need one.
//!
//! No memory is kept for what may come, and rows that hold the same, being forks of one another or having a
//! common beginning, hold it once.
//!
//! Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L longest row, P slots of
//! a page, D and Dv head sizes.
//!
//! Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023,
//! section 4.

use std::collections::HashMap;
use std::mem::take;

use ndarray::{Array4, ArrayRef4, Ix4, s};

use crate::allocation::Purpose;
use crate::cache::{Append, Cache, Held, Sizes, Slots, Stats, checked_index};
use crate::cache_content::{Column, Contents, Description, array_from_bytes, array_to_bytes};
use crate::cache_rope::{CacheRope, RopeAt};
use crate::cast::Stored;
use crate::checks::{check_append, check_pages, check_tokens, check_truncate, check_whole_rows};
use crate::errors::Result;
use crate::merge::OutputLse;
use crate::page_pool::{PageId, PagePool, PageSizes, Pages};
use crate::rope::Rope;
use crate::rows::Rows;
use crate::sdpa::{Sdpa, Steps};
use crate::simd::{Cached, KeysValues, Kind, Lines, Tier, check_cached};

/// Tables of pages, one a row. A clone shares all pages, until one of the two writes.
#[derive(Debug)]
pub struct PagedCache<S: Stored> {
    pool: PagePool<S>,
    rope: CacheRope,
    rows: Rows,
    tables: Vec<Vec<PageId>>,
    tokens: Vec<Vec<i64>>, // of each row, as far as they are known
}

impl<S: Stored> PagedCache<S> {
    /// An empty cache that takes its pages from `pool`.
    ///
    /// # Errors
    /// `InvalidConfig` for more rows than there is memory for.
    pub fn new(pool: &PagePool<S>, batch: usize) -> Result<Self> {
        let purpose = Purpose::option("paged_cache", "batch");
        Ok(Self {
            pool: pool.clone(),
            rope: CacheRope::default(),
            rows: Rows::new(purpose, batch)?,
            tables: purpose.list(batch, vec![])?,
            tokens: purpose.list(batch, vec![])?,
        })
    }

    /// The same cache, with keys rotated at their positions when they come, and queries at theirs.
    ///
    /// # Errors
    /// As for [`KvCache::with_rope`](crate::KvCache::with_rope).
    pub fn with_rope(self, rope: Rope) -> Result<Self> {
        self.with_rope_at(rope, RopeAt::Append)
    }

    /// `with_rope`, with a choice of when keys are rotated.
    ///
    /// # Errors
    /// Those of `with_rope`.
    pub fn with_rope_at(mut self, rope: Rope, at: RopeAt) -> Result<Self> {
        self.rope = CacheRope::new("paged_cache", self.sizes(), rope, at)?;
        Ok(self)
    }

    /// P.
    fn page_size(&self) -> usize {
        self.pool.sizes().page_size
    }

    /// How many pages an append of `counts[b]` tokens a row takes, copies on write among them.
    fn pages_needed(&self, pages: &Pages<S>, counts: &[usize]) -> usize {
        let mut writers: Vec<(PageId, usize)> = vec![]; // last pages that are not full, and by how many rows
        let mut needed = 0;
        for (b, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (held, table) = (self.rows.row(b).len(), &self.tables[b]);
            needed += (held + count).div_ceil(self.page_size()) - table.len();
            if !held.is_multiple_of(self.page_size()) {
                let last = table[table.len() - 1];
                match writers.iter_mut().find(|(page, _)| *page == last) {
                    Some((_, rows)) => *rows += 1,
                    None => writers.push((last, 1)),
                }
            }
        }
        // Whoever is the last to hold a page writes to it in place.
        let copies = |&(page, rows): &(PageId, usize)| rows.min(pages.holders(page) - 1);
        needed + writers.iter().map(copies).sum::<usize>()
    }

    /// `append` of keys that are rotated already.
    fn extend(
        &mut self,
        pages: &mut Pages<S>,
        (k, v): (&ArrayRef4<S>, &ArrayRef4<S>),
        options: &Append<'_>,
    ) -> Result<()> {
        // 1. check: pages for all rows, or nothing is taken
        let (counts, size) = (options.counts(self.rows.batch(), k.dim().2), self.page_size());
        let needed = self.pages_needed(pages, &counts);
        pages.check_free("append", needed)?;
        pages.reserve(Purpose::append(), needed)?;

        // 2. take pages: the last one is written to if it has room, as many more as it takes
        let writers: Vec<usize> = (0..counts.len()).filter(|&b| counts[b] > 0).collect();
        for &b in &writers {
            let (held, table) = (self.rows.row(b).len(), &mut self.tables[b]);
            if let Some(last) = table.last_mut().filter(|_| !held.is_multiple_of(size)) {
                *last = pages.writable(*last);
            }
            table.resize_with((held + counts[b]).div_ceil(size), || pages.take());
        }

        // 3. write: page by page
        for &b in &writers {
            let (k, v) = (options.taken(k, b, counts[b]), options.taken(v, b, counts[b]));
            let held = self.rows.row(b).len();
            let mut done = 0;
            while done < counts[b] {
                let (page, start) = (self.tables[b][(held + done) / size], (held + done) % size);
                let end = counts[b].min(done + size - start);
                let (k, v) = (k.slice(s![.., done..end, ..]), v.slice(s![.., done..end, ..]));
                pages.write(page, start, k, v); // (Hkv, count, D), (Hkv, count, Dv)
                if start + end - done == size {
                    pages.close(page);
                }
                done = end;
            }
        }
        self.rows.advance(&counts);

        // 4. share prefixes: a full page gives way to an older one of the same tokens and bits
        let Some(tokens) = options.tokens else {
            return Ok(());
        };
        for (b, known) in self.tokens.iter_mut().enumerate() {
            let (length, start) = (self.rows.row(b).len(), options.start(k.dim().2, counts[b]));
            if known.len() == length - counts[b] {
                known.extend(tokens.slice(s![b, start..start + counts[b]]));
            }
            for (id, end) in self.tables[b].iter_mut().zip((size..=known.len()).step_by(size)) {
                let older = pages.known(*id, &known[..end]);
                if older != *id {
                    pages.share(older, true);
                    pages.free(*id, true);
                    *id = older;
                }
            }
        }
        Ok(())
    }

    /// How many pages no other cache holds.
    fn pages_of_its_own(&self, pages: &Pages<S>) -> usize {
        let mut own: HashMap<PageId, usize> = HashMap::new();
        self.tables.iter().flatten().for_each(|&id| *own.entry(id).or_default() += 1);
        own.into_iter().filter(|&(id, rows)| pages.holders(id) == rows).count()
    }

    /// Row `b` holds the pages of its table once more.
    fn hold(&self, pages: &mut Pages<S>, b: usize) {
        for (index, &id) in self.tables[b].iter().enumerate() {
            pages.share(id, self.is_whole(b, index));
        }
    }

    /// All rows give back their pages.
    fn release(&mut self, pages: &mut Pages<S>) {
        for b in 0..self.tables.len() {
            for (index, id) in take(&mut self.tables[b]).into_iter().enumerate() {
                pages.free(id, self.is_whole(b, index));
            }
        }
    }

    /// Whether row `b` holds all slots of a page of its table.
    fn is_whole(&self, b: usize, index: usize) -> bool {
        (index + 1) * self.page_size() <= self.rows.row(b).len()
    }

    /// Copies of keys (B, Hkv, L, D) and values (B, Hkv, L, Dv), zero beyond a row's length.
    fn gather(&self) -> (Array4<S>, Array4<S>) {
        let (pages, longest, size) = (self.pool.lock(), self.rows.longest(), self.page_size());
        let Sizes { batch, num_kv_heads, head_dim, value_dim } = self.sizes();
        let mut k = Array4::default((batch, num_kv_heads, longest, head_dim)); // (B, Hkv, L, D)
        let mut v = Array4::default((batch, num_kv_heads, longest, value_dim)); // (B, Hkv, L, Dv)
        for (b, table) in self.tables.iter().enumerate() {
            for (index, &id) in table.iter().enumerate() {
                let (start, end) = (index * size, self.rows.row(b).len().min((index + 1) * size));
                let (page_k, page_v) = pages.view(id);
                let held = ..end - start;
                k.slice_mut(s![b, .., start..end, ..]).assign(&page_k.slice(s![.., held, ..]));
                v.slice_mut(s![b, .., start..end, ..]).assign(&page_v.slice(s![.., held, ..]));
            }
        }
        (k, v)
    }
}

impl<S: Stored> Cache<S> for PagedCache<S> {
    fn sizes(&self) -> Sizes {
        let PageSizes { num_kv_heads, head_dim, value_dim, .. } = self.pool.sizes();
        Sizes { batch: self.rows.batch(), num_kv_heads, head_dim, value_dim }
    }

    fn rows(&self) -> &Rows {
        &self.rows
    }

    fn rope(&self) -> Option<&Rope> {
        self.rope.of_queries()
    }

    fn check_append(&self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) -> Result<()> {
        check_append("append", k.dim(), v.dim(), options, self.sizes())?;
        check_tokens("append", options, (self.rows.batch(), k.dim().2))?;
        let pages = self.pool.lock();
        let counts = options.counts(self.rows.batch(), k.dim().2); // (B)
        pages.check_free("append", self.pages_needed(&pages, &counts))
    }

    fn append(&mut self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) -> Result<()> {
        self.check_append(k, v, options)?;
        let k = self.rope.placed(k, &self.rows, options).into_owned(); // (B, Hkv, T, D)
        let pool = self.pool.clone();
        self.extend(&mut pool.lock(), (&k, v), options)
    }

    fn attend_steps(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>> {
        self.check_attend(q.dim(), self.rows.longest(), options)?;
        let start = self.rows.align(q.dim().2, options.mask.q_offset); // (B)

        // 5. attend: over the pages of each row, one after the other
        let (k, v) = self.gather(); // (B, Hkv, L, D), (B, Hkv, L, Dv)
        let slots = Slots::new(k.view(), v.view(), &self.rows, &self.rope);
        slots.attend(q, &start, options, |_, _| true)
    }

    fn attend_simd(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
        tier: Option<Tier>,
    ) -> Result<OutputLse<S::Compute, Ix4>> {
        self.check_attend(q.dim(), self.rows.longest(), options)?;
        let tier = check_cached(options, &self.rope, false, tier)?;
        let start = self.rows.align(q.dim().2, options.mask.q_offset); // (B)
        let Sizes { num_kv_heads, head_dim, value_dim, .. } = self.sizes();
        let (pages, size) = (self.pool.lock(), self.page_size());
        let each = self.tables.iter().flat_map(|table| (0..num_kv_heads).map(move |h| (table, h)));
        let heads = each
            .map(|(table, h)| -> KeysValues<'_, S::Compute> {
                let (k, v): (Vec<_>, Vec<_>) = table.iter().map(|&id| pages.head(id, h)).unzip();
                [Lines::pages(k, size, head_dim), Lines::pages(v, size, value_dim)]
            })
            .collect();
        let (kind, rows, rope) = (Kind::of::<S>(), &self.rows, &self.rope);
        let cached = Cached { kind, heads, value_dim, rows, rope, window: None };
        Ok(cached.attend(q, &start, options, tier))
    }

    fn truncate(&mut self, lengths: &[i64]) -> Result<()> {
        // 6. truncate: pages that hold nothing of the row any more go back
        check_truncate("truncate", lengths, &self.rows.lengths())?;
        let (pool, size) = (self.pool.clone(), self.page_size());
        let mut pages = pool.lock();
        for (b, &length) in lengths.iter().enumerate() {
            let length = length as usize;
            let kept = length.div_ceil(size);
            if kept * size > length && self.is_whole(b, kept - 1) {
                pages.open(self.tables[b][kept - 1]);
            }
            for index in kept..self.tables[b].len() {
                pages.free(self.tables[b][index], self.is_whole(b, index));
            }
            self.tables[b].truncate(kept);
            self.tokens[b].truncate(length);
        }
        self.rows.truncate(lengths);
        Ok(())
    }

    fn reset(&mut self) {
        let pool = self.pool.clone();
        self.release(&mut pool.lock());
        self.rows.clear();
        self.tokens.iter_mut().for_each(Vec::clear);
    }

    fn read(&self) -> Held<S> {
        let (k, v) = self.gather(); // (B, Hkv, L, D), (B, Hkv, L, Dv)
        Held { k, v, lengths: self.rows.lengths(), positions: self.rows.positions() }
    }

    fn reorder(&mut self, index: &[i64]) -> Result<()> {
        let index = checked_index(index, self.rows.batch())?;
        let pool = self.pool.clone();
        let mut pages = pool.lock();
        index.iter().for_each(|&b| self.hold(&mut pages, b));
        let tables = index.iter().map(|&b| self.tables[b].clone()).collect();
        self.release(&mut pages);
        self.tables = tables;
        self.tokens = index.iter().map(|&b| self.tokens[b].clone()).collect();
        self.rows.reorder(&index);
        Ok(())
    }

    fn fork(&self) -> Box<dyn Cache<S>> {
        Box::new(self.clone())
    }

    fn stats(&self) -> Stats {
        let pages = self.pool.lock();
        let counts = pages.counts();
        let bytes = counts.used * pages.page_bytes();
        Stats { positions: self.rows.lengths(), bytes, pages: Some(counts) }
    }

    fn describe(&self) -> Description {
        Description::of_kv::<S>("paged", self.sizes())
            .with("rope", self.rope.of_held().is_some())
            .with("page_size", self.page_size())
            .with("num_pages", self.pool.sizes().num_pages)
    }

    fn columns(&self) -> Vec<Column> {
        Column::of_kv::<S>(self.sizes())
    }

    fn contents(&self) -> Contents {
        let held = self.read();
        vec![array_to_bytes(&held.k), array_to_bytes(&held.v)]
    }

    fn restore(&mut self, rows: Rows, contents: &Contents) -> Result<()> {
        check_whole_rows("load", &rows)?;
        let pool = self.pool.clone();
        let mut pages = pool.lock();
        let of_row = |&n: &i64| (n as usize).div_ceil(self.page_size());
        let needed: usize = rows.lengths().iter().map(of_row).sum();
        let own = self.pages_of_its_own(&pages);
        check_pages("load", needed, pages.counts().free + own)?;
        pages.reserve(Purpose::load(), needed.saturating_sub(own))?;
        let Sizes { batch, num_kv_heads, head_dim, value_dim } = self.sizes();
        let shape = |n| (batch, num_kv_heads, rows.longest(), n);
        let k = array_from_bytes(&contents[0], shape(head_dim)); // (B, Hkv, L, D)
        let v = array_from_bytes(&contents[1], shape(value_dim)); // (B, Hkv, L, Dv)
        self.release(&mut pages);
        self.rows.clear();
        self.tokens.iter_mut().for_each(Vec::clear);
        let lengths = rows.lengths();
        let options = Append { lengths: Some(&lengths), ..Append::default() };
        self.extend(&mut pages, (&k, &v), &options)
    }
}

impl<S: Stored> Clone for PagedCache<S> {
    fn clone(&self) -> Self {
        // 7. fork: tables of its own, of the same pages
        let mut pages = self.pool.lock();
        (0..self.tables.len()).for_each(|b| self.hold(&mut pages, b));
        Self {
            pool: self.pool.clone(),
            rope: self.rope.clone(),
            rows: self.rows.clone(),
            tables: self.tables.clone(),
            tokens: self.tokens.clone(),
        }
    }
}

impl<S: Stored> Drop for PagedCache<S> {
    fn drop(&mut self) {
        let pool = self.pool.clone();
        self.release(&mut pool.lock());
    }
}
