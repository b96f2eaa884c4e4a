//! The walk over the tiles and the heads of few rows.

use std::borrow::Cow;
use std::ops::Range;

use ndarray::{Array3, Array4, ArrayRef4, s};

use super::across::Across;
use super::decode::{Decode, Partial, Room, few_rows, finish, segment, segments};
use super::source::{Kind, Lines};
use super::tier::Tier;
use super::tile::{Rows, Tile};
use super::vectors::Vectors;
use super::wave::{WAVE, Wave, some_tiles};
use crate::checks::check_sdpa;
use crate::errors::{AttentionError, Result};
use crate::float::Float;
use crate::sdpa::Sdpa;

/// The arguments of one call, checked, on a tier that is available.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a, T> {
    pub q: &'a ArrayRef4<T>,
    pub k: &'a ArrayRef4<T>,
    pub v: &'a ArrayRef4<T>,
    pub options: &'a Sdpa<'a, T>,
    pub scale: T,
    pub tier: Tier,
    /// G · Tq of the whole head, of which the queries may be a part.
    pub head_rows: usize,
}

impl<'a, T: Float> Call<'a, T> {
    /// The arguments of sdpa, checked; the tier chosen as in [`Tier::choose`].
    pub fn new(
        (q, k, v): (&'a ArrayRef4<T>, &'a ArrayRef4<T>, &'a ArrayRef4<T>),
        options: &'a Sdpa<'a, T>,
        tier: Option<Tier>,
    ) -> Result<Self> {
        check_sdpa("sdpa", q.dim(), k.dim(), v.dim(), options)?;
        let tier = Tier::choose(tier)?;
        if options.dropout.is_some() {
            return Err(AttentionError::Unsupported("dropout".into()));
        }
        let head_rows = q.dim().1 / k.dim().1.max(1) * q.dim().2;
        Ok(Self { q, k, v, options, scale: options.scale_of(q.dim().3), tier, head_rows })
    }

    /// Whether the queries go through the kernels for few rows. Of the whole head, and nothing else, it depends.
    pub(super) fn is_few(&self) -> bool {
        self.head_rows <= T::lanes(self.tier) / 2
    }

    /// All queries of the group of one KV head.
    fn rows(&self, b: usize, kv: usize) -> Rows {
        let (_, hq, tq, _) = self.q.dim();
        let group = hq / self.k.dim().1; // G
        Rows { b, head: kv * group, tq, first: 0, count: group * tq }
    }

    /// The segments of keys that the queries of each KV head see, for few rows.
    pub(super) fn segments(&self) -> Vec<Share> {
        let (batch, hkv, tk, _) = self.k.dim();
        let mut tile = Tile::<T>::default();
        let mut all = vec![];
        for (b, kv) in (0..batch).flat_map(|b| (0..hkv).map(move |kv| (b, kv))) {
            let reach = tile.reach(&self.options.mask, self.rows(b, kv), tk);
            all.extend(segments(reach).map(|keys| Share { b, kv, keys }));
        }
        all
    }
}

/// What a call writes.
struct Results<T> {
    output: Array4<T>, // (B, Hq, Tq, Dv)
    lse: Array3<T>,    // (B, Hq, Tq)
}

/// What is to be done.
enum Task<'a, T> {
    /// All of a call.
    All(&'a mut Results<T>),
    /// One segment of the keys of one KV head, for few rows.
    Segment(Share, &'a mut Option<Partial<T>>),
}

/// A segment of keys: of which row of the batch, of which KV head, and which keys.
#[derive(Debug, Clone)]
pub struct Share {
    pub b: usize,
    pub kv: usize,
    pub keys: Range<usize>,
}

/// Output (B, Hq, Tq, Dv) and lse (B, Hq, Tq).
pub(super) fn attend<T: Float>(call: &Call<'_, T>) -> (Array4<T>, Array3<T>) {
    let ((batch, hq, tq, _), dv) = (call.q.dim(), call.v.dim().3);
    let (output, lse) = (Array4::zeros((batch, hq, tq, dv)), Array3::zeros((batch, hq, tq)));
    let mut results = Results { output, lse };
    perform(call, Task::All(&mut results));
    (results.output, results.lse)
}

/// The softmax over one segment of the keys of a call of few rows.
pub(super) fn attend_segment<T: Float>(call: &Call<'_, T>, share: Share) -> Partial<T> {
    let mut partial = None;
    perform(call, Task::Segment(share, &mut partial));
    partial.expect("a task is done")
}

fn perform<T: Float>(call: &Call<'_, T>, task: Task<'_, T>) {
    assert!(call.tier.is_available());
    match call.tier {
        // SAFETY: the tier is available.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 => unsafe { on_registers::<<T as Vectors>::Avx512>(call, task) },
        // SAFETY: the tier is available.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => unsafe { on_registers::<<T as Vectors>::Avx2>(call, task) },
        // SAFETY: the tier is available.
        #[cfg(target_arch = "aarch64")]
        Tier::Neon => unsafe { on_registers::<<T as Vectors>::Neon>(call, task) },
        // SAFETY: these registers need no instruction set.
        _ => unsafe { on_registers::<T::Portable>(call, task) },
    }
}

/// # Safety
/// The processor has the instruction set of `V`.
unsafe fn on_registers<V: Across>(call: &Call<'_, V::Scalar>, task: Task<'_, V::Scalar>) {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        match task {
            Task::All(results) if call.is_few() => every_few::<V>(call, results),
            Task::All(results) => every_tile::<V>(call, results),
            Task::Segment(share, partial) => *partial = Some(one_segment::<V>(call, share)),
        }
    }
}

/// One KV head and the queries of its group, each one block of memory.
#[derive(Clone, Copy)]
pub(super) struct Head<'a, T> {
    /// (G · Tq, D), of all tiles
    pub q: &'a [T],
    /// (Tk, D)
    pub k: &'a [T],
    /// (Tk, Dv)
    pub v: &'a [T],
}

/// # Safety
/// The processor has the instruction set of `V`.
unsafe fn every_tile<V: Across>(call: &Call<'_, V::Scalar>, results: &mut Results<V::Scalar>) {
    let ((batch, hq, tq, _), (_, hkv, _, dv)) = (call.q.dim(), call.v.dim());
    let group = hq / hkv.max(1); // G
    let count = group * tq;
    if count == 0 {
        return;
    }
    let mut wave = Wave::take();
    let output = results.output.as_slice_mut().expect("standard layout"); // (B · Hkv · G · Tq · Dv)
    let lse = results.lse.as_slice_mut().expect("standard layout"); // (B · Hkv · G · Tq)
    for (b, kv) in (0..batch).flat_map(|b| (0..hkv).map(move |kv| (b, kv))) {
        let q = block(call.q, b, kv * group..(kv + 1) * group);
        let (k, v) = (block(call.k, b, kv..kv + 1), block(call.v, b, kv..kv + 1));
        let head = Head { q: &q, k: &k, v: &v };
        let lines = (b * hkv + kv) * count; // before this head
        let mut first = 0;
        while first < count {
            let left = count - first;
            let vectors = left.div_ceil(V::COUNT).min(V::BLOCK);
            let tiles = (left / (vectors * V::COUNT)).clamp(1, WAVE); // whole ones, or the last
            let size = left.min(tiles * vectors * V::COUNT);
            let rows = Rows { b, head: kv * group, tq, first, count: size };
            let output = &mut output[(lines + first) * dv..(lines + first + size) * dv];
            let lse = &mut lse[lines + first..lines + first + size];
            // SAFETY: the caller vouches for the instruction set.
            unsafe {
                match vectors {
                    1 => some_tiles::<V, 1>(call, rows, head, &mut wave, output, lse),
                    2 => some_tiles::<V, 2>(call, rows, head, &mut wave, output, lse),
                    _ if V::BLOCK > 2 => {
                        some_tiles::<V, 4>(call, rows, head, &mut wave, output, lse)
                    }
                    _ => unreachable!("no more than BLOCK registers"),
                }
            }
            first += size;
        }
    }
    wave.keep();
}

/// Some heads of one row of the batch as one block of memory: where they are, if they are one already, as in an array
/// of any capacity; else copied.
fn block<T: Float>(all: &ArrayRef4<T>, b: usize, heads: Range<usize>) -> Cow<'_, [T]> {
    let (_, count, t, n) = all.dim();
    if let Some(all) = all.as_slice() {
        // What `slice` finds out too, but it looks longer than a short head takes.
        let head = |h: usize| (b * count + h) * t * n;
        return Cow::Borrowed(&all[head(heads.start)..head(heads.end)]);
    }
    let some = all.slice(s![b, heads, .., ..]);
    match some.to_slice() {
        Some(some) => Cow::Borrowed(some),
        None => Cow::Owned(some.iter().copied().collect()),
    }
}

/// # Safety
/// The processor has the instruction set of `V`.
unsafe fn every_few<V: Across>(call: &Call<'_, V::Scalar>, results: &mut Results<V::Scalar>) {
    let (mut tile, mut room) = (Tile::default(), Room::new());
    let output = results.output.as_slice_mut().expect("standard layout"); // (B · Hkv · G · Tq · Dv)
    let lse = results.lse.as_slice_mut().expect("standard layout"); // (B · Hkv · G · Tq)
    let (batch, hkv, tk, dv) = call.v.dim();
    for (b, kv) in (0..batch).flat_map(|b| (0..hkv).map(move |kv| (b, kv))) {
        let rows = call.rows(b, kv);
        if rows.count == 0 {
            return;
        }
        let reach = tile.reach(&call.options.mask, rows, tk);
        let lines = (b * hkv + kv) * rows.count..(b * hkv + kv + 1) * rows.count;
        let (output, lse) = (&mut output[lines.start * dv..lines.end * dv], &mut lse[lines]);
        let head = FewHead::new(call, rows, kv);
        // SAFETY: the caller vouches for the instruction set.
        unsafe {
            few_rows::<V>(&head.decode(call), (rows, reach), (&mut tile, &mut room), output, lse)
        };
    }
}

/// # Safety
/// The processor has the instruction set of `V`.
unsafe fn one_segment<V: Across>(call: &Call<'_, V::Scalar>, share: Share) -> Partial<V::Scalar> {
    let Share { b, kv, keys } = share;
    let (mut tile, mut room, rows) = (Tile::default(), Room::new(), call.rows(b, kv));
    tile.reach(&call.options.mask, rows, call.k.dim().2);
    let head = FewHead::new(call, rows, kv);
    // SAFETY: the caller vouches for the instruction set.
    unsafe { segment::<V>(&head.decode(call), (rows, keys), &mut tile, &mut room) };
    Partial::of(&mut tile)
}

/// Joins the segments of a KV head, in their order, and writes `output` (G, Tq, Dv) and `lse` (G, Tq).
pub(super) fn finish_head<T: Float>(
    call: &Call<'_, T>,
    (b, kv): (usize, usize),
    partials: impl Iterator<Item = Partial<T>>,
    output: &mut [T],
    lse: &mut [T],
) {
    let (mut tile, rows) = (Tile::default(), call.rows(b, kv));
    finish(call.options.sinks, (rows, call.v.dim().3), partials, &mut tile, output, lse);
}

/// One KV head for few rows: its queries as one block of memory, its keys and values where they lie.
struct FewHead<'a, T: Clone> {
    q: Cow<'a, [T]>,
    k: Lines<'a, T>,
    v: Lines<'a, T>,
}

impl<'a, T: Float> FewHead<'a, T> {
    fn new(call: &Call<'a, T>, rows: Rows, kv: usize) -> Self {
        let heads = rows.head..rows.head + rows.count / rows.tq;
        let of = |all: &'a ArrayRef4<T>| {
            let (_, heads, t, n) = all.dim();
            match all.as_slice() {
                // What `slice` finds out too, but it looks longer than a short head takes.
                Some(all) => Lines::block(&all[(rows.b * heads + kv) * t * n..][..t * n], n),
                None => Lines::of(all.slice(s![rows.b, kv, .., ..])),
            }
        };
        Self { q: block(call.q, rows.b, heads), k: of(call.k), v: of(call.v) }
    }

    fn decode(&'a self, call: &Call<'a, T>) -> Decode<'a, T> {
        let ((batch, hq, tq, d), (_, _, tk, dv)) = (call.q.dim(), call.v.dim());
        Decode {
            options: call.options,
            scale: call.scale,
            table: (batch, hq, tq, tk),
            keys: tk,
            sizes: (d, dv),
            q: &self.q,
            kind: Kind::Computed,
            k: &self.k,
            v: &self.v,
        }
    }
}
