//! A pool of pages of equal size, for the rows of all paged caches that share it.
//!
//! Each page counts the rows that hold it. A row that would write to a page that others hold as well gets a copy
//! of its own; a page that no row holds is free. Pages whose tokens are known, from the start of their row on,
//! are found again by them, so that rows with a common beginning hold the same pages.
//!
//! Letters: Hkv key/value heads, D and Dv head sizes, P slots of a page.
//!
//! Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023,
//! section 4.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ndarray::{Array3, ArrayView3, s};

use crate::allocation::Purpose;
use crate::cache::{PageCounts, Sizes};
use crate::cache_content::to_bytes;
use crate::cast::Stored;
use crate::checks::{check_cache_config, check_page_size, check_pages};
use crate::errors::Result;

/// A handle on a pool; its clones are handles on the same pool.
#[derive(Debug, Clone)]
pub struct PagePool<S> {
    pages: Arc<Mutex<Pages<S>>>,
    sizes: PageSizes,
}

/// What all pages of a pool have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSizes {
    /// Pages there can be.
    pub num_pages: usize,
    /// P.
    pub page_size: usize,
    /// Hkv.
    pub num_kv_heads: usize,
    /// D.
    pub head_dim: usize,
    /// Dv.
    pub value_dim: usize,
}

impl<S: Stored> PagePool<S> {
    /// A pool whose pages are all free.
    ///
    /// # Errors
    /// `InvalidConfig` when `page_size`, `num_kv_heads` or `head_dim` is 0, and for pages of more than 2^53 numbers.
    pub fn new(sizes: PageSizes) -> Result<Self> {
        check_page_size("page_pool", sizes.page_size)?;
        let PageSizes { num_pages: batch, num_kv_heads, head_dim, value_dim, page_size } = sizes;
        let all = Sizes { batch, num_kv_heads, head_dim, value_dim };
        check_cache_config("page_pool", all, Some(page_size))?;
        let mut pages = Pages { sizes, pages: vec![], free: vec![], known: HashMap::new() };
        // One page that can be had now shows that their size is none that nobody could have.
        pages.reserve(Purpose::option("page_pool", "page_size"), sizes.num_pages.min(1))?;
        Ok(Self { pages: Arc::new(Mutex::new(pages)), sizes })
    }

    /// What its pages have in common.
    pub fn sizes(&self) -> PageSizes {
        self.sizes
    }

    /// How many pages are used, shared and free.
    pub fn counts(&self) -> PageCounts {
        self.lock().counts()
    }

    /// The pages, for this thread alone. A call that panicked has changed nothing, as one that failed.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Pages<S>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of a page.
pub(crate) type PageId = usize;

/// All pages that there is memory for, and which of them are free.
#[derive(Debug)]
pub(crate) struct Pages<S> {
    sizes: PageSizes,
    pages: Vec<Page<S>>,
    free: Vec<PageId>,
    known: HashMap<Vec<i64>, Vec<PageId>>, // by the tokens of a row up to the end of the page
}

#[derive(Debug, Clone)]
struct Page<S> {
    k: Array3<S>,             // (Hkv, P, D)
    v: Array3<S>,             // (Hkv, P, Dv)
    holders: usize,           // rows
    whole: usize,             // those of them that hold all of its slots
    tokens: Option<Vec<i64>>, // under which it is known
}

impl<S: Stored> Pages<S> {
    pub(crate) fn counts(&self) -> PageCounts {
        let used = self.pages.len() - self.free.len();
        let shared = self.pages.iter().filter(|page| page.holders > 1).count();
        PageCounts { used, shared, free: self.sizes.num_pages - used }
    }

    /// Refuses to take more pages than are free.
    pub(crate) fn check_free(&self, name: &'static str, needed: usize) -> Result<()> {
        check_pages(name, needed, self.counts().free)
    }

    /// How many rows hold a page.
    pub(crate) fn holders(&self, id: PageId) -> usize {
        self.pages[id].holders
    }

    /// Memory for so many pages that are to be taken, so that none of them is refused then.
    pub(crate) fn reserve(&mut self, purpose: Purpose, needed: usize) -> Result<()> {
        let PageSizes { page_size, num_kv_heads, head_dim, value_dim, .. } = self.sizes;
        while self.free.len() < needed {
            let k = purpose.array((num_kv_heads, page_size, head_dim), S::default())?; // (Hkv, P, D)
            let v = purpose.array((num_kv_heads, page_size, value_dim), S::default())?; // (Hkv, P, Dv)
            self.free.push(self.pages.len());
            self.pages.push(Page { k, v, holders: 0, whole: 0, tokens: None });
        }
        Ok(())
    }

    /// A page that only the taker holds; memory for it is reserved.
    pub(crate) fn take(&mut self) -> PageId {
        // 1. take: any that nobody holds
        let id = self.free.pop().expect("reserved");
        self.pages[id].holders = 1;
        id
    }

    /// One row more holds a page, perhaps all slots of it.
    pub(crate) fn share(&mut self, id: PageId, whole: bool) {
        // 2. share: nothing is copied before somebody writes
        self.pages[id].holders += 1;
        self.pages[id].whole += usize::from(whole);
    }

    /// The page that a row which holds `id`, not all of it, may write to.
    pub(crate) fn writable(&mut self, id: PageId) -> PageId {
        // 3. copy on write: of a page that others hold as well
        if self.pages[id].holders > 1 {
            let copy = self.take();
            let [from, to] = self.pages.get_disjoint_mut([id, copy]).expect("two pages");
            to.k.assign(&from.k);
            to.v.assign(&from.v);
            from.holders -= 1;
            return copy;
        }
        id
    }

    /// A row that held a page, perhaps all slots of it, does so no more.
    pub(crate) fn free(&mut self, id: PageId, whole: bool) {
        // 4. free: when no row is left
        if whole {
            self.open(id);
        }
        self.pages[id].holders -= 1;
        if self.pages[id].holders == 0 {
            self.free.push(id);
        }
    }

    /// A row that held all slots of a page does so no more.
    pub(crate) fn open(&mut self, id: PageId) {
        self.pages[id].whole -= 1;
        if self.pages[id].whole == 0
            && let Some(tokens) = self.pages[id].tokens.take()
        {
            let same = self.known.get_mut(&tokens).expect("entered when the tokens were");
            same.retain(|&other| other != id);
            if same.is_empty() {
                self.known.remove(&tokens);
            }
        }
    }

    /// A row that holds a page has got all slots of it.
    pub(crate) fn close(&mut self, id: PageId) {
        self.pages[id].whole += 1;
    }

    /// Slots of a page from `start` on become `k` (Hkv, count, D) and `v` (Hkv, count, Dv).
    pub(crate) fn write(
        &mut self,
        id: PageId,
        start: usize,
        k: ArrayView3<'_, S>,
        v: ArrayView3<'_, S>,
    ) {
        let slots = start..start + k.dim().1;
        self.pages[id].k.slice_mut(s![.., slots.clone(), ..]).assign(&k);
        self.pages[id].v.slice_mut(s![.., slots, ..]).assign(&v);
    }

    /// Keys (Hkv, P, D) and values (Hkv, P, Dv) of a page.
    pub(crate) fn view(&self, id: PageId) -> (ArrayView3<'_, S>, ArrayView3<'_, S>) {
        (self.pages[id].k.view(), self.pages[id].v.view())
    }

    /// One head of a page: keys (P · D) and values (P · Dv).
    pub(crate) fn head(&self, id: PageId, h: usize) -> (&[S], &[S]) {
        let Page { k, v, .. } = &self.pages[id];
        let (k, v) = (k.slice(s![h, .., ..]).to_slice(), v.slice(s![h, .., ..]).to_slice());
        (k.expect("standard layout"), v.expect("standard layout"))
    }

    /// The oldest page that is known by these tokens and has the bits of page `id`; if there is none, `id`
    /// itself, which is known by them from now on.
    pub(crate) fn known(&mut self, id: PageId, tokens: &[i64]) -> PageId {
        if self.pages[id].tokens.is_some() {
            return id;
        }
        let bits = |id: PageId| {
            let page = &self.pages[id];
            to_bytes(page.k.iter().chain(&page.v).copied())
        };
        let same = self.known.get(tokens).into_iter().flatten();
        if let Some(&older) = same.into_iter().find(|&&other| bits(other) == bits(id)) {
            return older;
        }
        self.known.entry(tokens.to_vec()).or_default().push(id);
        self.pages[id].tokens = Some(tokens.to_vec());
        id
    }

    /// Bytes of a page.
    pub(crate) fn page_bytes(&self) -> usize {
        let PageSizes { page_size, num_kv_heads, head_dim, value_dim, .. } = self.sizes;
        page_size * num_kv_heads * (head_dim + value_dim) * size_of::<S>()
    }
}
