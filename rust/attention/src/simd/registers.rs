//! What the registers of every tier must do, one operation at a time.

use half::{bf16, f16};

use super::across::{Across, LONGEST};
use super::few::elements;
use super::kernel::num;
use super::tier::Tier;
use super::vectors::Vectors;
use crate::float::Float;

/// Calls a check for the registers of each tier that this machine has.
macro_rules! on_every_tier {
    ($check:ident::<$scalar:ty>) => {
        $check::<<$scalar as Vectors>::Portable>();
        #[cfg(target_arch = "x86_64")]
        if Tier::Avx2.is_available() {
            $check::<<$scalar as Vectors>::Avx2>();
        }
        #[cfg(target_arch = "x86_64")]
        if Tier::Avx512.is_available() {
            $check::<<$scalar as Vectors>::Avx512>();
        }
        #[cfg(target_arch = "aarch64")]
        if Tier::Neon.is_available() {
            $check::<<$scalar as Vectors>::Neon>();
        }
    };
}

pub(super) use on_every_tier;

fn epsilon<T: Float>() -> T {
    T::epsilon()
}

fn is_negative<T: Float>(x: T) -> bool {
    x.is_sign_negative()
}

/// The same number, the sign of zero included, or both NaN.
fn same<T: Float>(x: T, y: T) -> bool {
    (x == y && x.is_sign_negative() == y.is_sign_negative()) || (x.is_nan() && y.is_nan())
}

/// The first COUNT results of an operation on two registers.
fn apply<V: Across>(a: &[V::Scalar], b: &[V::Scalar], f: impl Fn(V, V) -> V) -> Vec<V::Scalar> {
    assert!(a.len() == V::COUNT && b.len() == V::COUNT);
    // SAFETY: the tests ask only for tiers of this machine; both have COUNT floats.
    let all = unsafe { elements(f(V::load(a.as_ptr()), V::load(b.as_ptr()))) };
    all[..V::COUNT].to_vec()
}

/// Every pair of these meets in every lane.
fn pairs<T: Float>() -> impl Iterator<Item = (T, T)> {
    const SPECIAL: [f64; 9] =
        [0.0, -0.0, 1.0, -1.5, 3.25, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -2.0];
    SPECIAL.into_iter().flat_map(|a| SPECIAL.map(|b| (num(a), num(b))))
}

#[test]
fn each_lane_is_computed_as_a_number_is() {
    fn check<V: Across>() {
        let one = num(1.0);
        for lane in 0..V::COUNT {
            for (a, b) in pairs::<V::Scalar>() {
                let (mut x, mut y) = (vec![one; V::COUNT], vec![num(0.5); V::COUNT]);
                (x[lane], y[lane]) = (a, b);
                let is = |f: fn(V, V) -> V, want: V::Scalar| {
                    let got = apply(&x, &y, f);
                    assert!(same(got[lane], want), "lane {lane} of {a}, {b}: {:?}", got[lane]);
                };
                is(V::add, a + b);
                is(V::sub, a - b);
                is(V::mul, a * b);
                is(V::div, a / b);
                is(|x, y| x.mul_add(y, x), a * b + a); // exact for these, however often it is rounded
                is(V::max, if a > b { a } else { b });
                is(V::min, if a < b { a } else { b });
                is(|x, y| x.select_equal(y, y.add(y), x), if a == b { b + b } else { a });
                is(|x, y| x.select_negative(y, x), if is_negative(a) { b } else { a });
                // SAFETY: the tests ask only for tiers of this machine; both have COUNT floats.
                let any = unsafe { V::load(x.as_ptr()).any_equal(V::load(y.as_ptr())) };
                assert_eq!(any, a == b, "lane {lane} of {a}, {b}");
            }
        }
    }
    on_every_tier!(check::<f32>);
    on_every_tier!(check::<f64>);
}

#[test]
fn sums_of_products_are_rounded_once_where_they_are_fused() {
    fn check<V: Across>() {
        // (1 + e)^2 - (1 + 2·e) = e^2, of which a product that is rounded keeps nothing.
        let (one, e) = (num::<V::Scalar>(1.0), epsilon::<V::Scalar>());
        let (x, minus) = (vec![one + e; V::COUNT], vec![-(one + e + e); V::COUNT]);
        let got = apply::<V>(&x, &minus, |x, minus| x.mul_add(x, minus));
        let want = if V::FUSED { e * e } else { num(0.0) };
        assert!(got.iter().all(|&got| got == want), "{got:?}");
    }
    on_every_tier!(check::<f32>);
    on_every_tier!(check::<f64>);
}

#[test]
fn powers_of_two_down_to_the_last_denormal() {
    fn check<V: Across>() {
        let least = if size_of::<V::Scalar>() == 4 { (-149, -126) } else { (-1074, -1022) };
        for n in least.0 - 4..=0 {
            // Powers are exact, half of the smallest is a tie that goes to 0.
            let want =
                if n < least.0 { 0.0 } else { 2.0_f64.powi(n / 2) * 2.0_f64.powi(n - n / 2) };
            let x = vec![num(1.0); V::COUNT];
            let power = vec![num(f64::from(n)); V::COUNT];
            let mut all = vec![apply::<V>(&x, &power, V::mul_power_of_two)];
            if n >= least.1 {
                all.push(apply(&x, &power, V::mul_normal_power_of_two));
            }
            assert!(all.iter().flatten().all(|&got| got == num(want)), "2^{n}: {all:?}");
        }
    }
    on_every_tier!(check::<f32>);
    on_every_tier!(check::<f64>);
}

#[test]
fn rows_become_columns() {
    fn check<V: Across>() {
        let (count, stride, to_stride) = (V::COUNT, V::COUNT + 3, V::COUNT + 1);
        let from: Vec<V::Scalar> = (0..count * stride).map(|n| num(n as f64)).collect();
        let mut to = vec![num(-1.0); count * to_stride];
        // SAFETY: the tests ask only for tiers of this machine; COUNT rows and columns of COUNT floats.
        unsafe { V::transpose(from.as_ptr(), stride, to.as_mut_ptr(), to_stride) };
        for (at, &got) in to.iter().enumerate() {
            let (column, row) = (at / to_stride, at % to_stride);
            let want = if row < count { from[row * stride + column] } else { num(-1.0) };
            assert_eq!(got, want, "row {row}, column {column}");
        }
    }
    on_every_tier!(check::<f32>);
    on_every_tier!(check::<f64>);
}

#[test]
fn sums_of_lanes_stand_in_the_order_of_the_registers() {
    fn of<V: Across, const K: usize, const H: usize>() {
        // Register r has (r + 1)·4^lane in one lane and zeros elsewhere: every lane is seen alone.
        for lane in 0..V::COUNT {
            let size = 4.0_f64.powi(lane as i32);
            let register = |r: usize| {
                let mut x = [num(0.0); LONGEST];
                x[lane] = num((r + 1) as f64 * size);
                // SAFETY: the tests ask only for tiers of this machine; LONGEST >= COUNT floats.
                unsafe { V::load(x.as_ptr()) }
            };
            let sums: [[V; K]; H] =
                std::array::from_fn(|h| std::array::from_fn(|k| register(h * K + k)));
            // SAFETY: the registers are of this machine.
            let got = unsafe { elements(V::add_up(sums)) };
            for (r, &got) in got.iter().enumerate().take(V::COUNT) {
                assert_eq!(got, num((r + 1) as f64 * size), "register {r}, lane {lane}");
            }
        }
    }
    fn check<V: Across>() {
        match V::COUNT {
            16 => [of::<V, 16, 1>, of::<V, 4, 4>].iter().for_each(|of| of()),
            8 => [of::<V, 8, 1>, of::<V, 4, 2>].iter().for_each(|of| of()),
            4 => of::<V, 4, 1>(),
            2 => of::<V, 2, 1>(),
            count => panic!("registers of {count}"),
        }
    }
    on_every_tier!(check::<f32>);
    on_every_tier!(check::<f64>);
}

#[test]
fn the_first_numbers_are_loaded_alone() {
    fn check<V: Across>() {
        for count in 1..V::COUNT {
            let from: Vec<V::Scalar> = (1..=count).map(|n| num(n as f64)).collect();
            // SAFETY: the tests ask only for tiers of this machine; there are `count` floats.
            let got = unsafe { elements(V::load_first(from.as_ptr(), count)) };
            for (lane, &got) in got.iter().enumerate().take(V::COUNT) {
                assert_eq!(got, if lane < count { from[lane] } else { num(0.0) });
            }
        }
    }
    on_every_tier!(check::<f32>);
    on_every_tier!(check::<f64>);
}

/// `load` of all `codes`, which are `bits` wide, is `want` of each, from addresses that no number has.
fn widened<V: Across>(
    codes: &[u8],
    bits: usize,
    load: unsafe fn(*const u8) -> V,
    want: impl Fn(usize) -> f32,
) {
    let mut moved = vec![0; codes.len() + 1];
    moved[1..].copy_from_slice(codes);
    let numbers = codes.len() * 8 / bits;
    assert!(numbers.is_multiple_of(V::COUNT));
    for first in (0..numbers).step_by(V::COUNT) {
        // SAFETY: the tests ask only for tiers of this machine; first + COUNT <= numbers.
        let got = unsafe { elements(load(moved.as_ptr().add(1 + first * bits / 8))) };
        for (n, &got) in (first..).zip(&got[..V::COUNT]) {
            let want = num::<V::Scalar>(f64::from(want(n)));
            assert!(same(got, want), "number {n} of {bits} bits: {got}, not {want}");
        }
    }
}

#[test]
fn every_number_that_is_stored_in_fewer_bits_becomes_itself() {
    fn check<V: Across>() {
        let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        widened::<V>(&halves, 16, V::from_f16, |n| f16::from_bits(n as u16).to_f32());
        widened::<V>(&halves, 16, V::from_bf16, |n| bf16::from_bits(n as u16).to_f32());
        widened::<V>(&bytes, 8, V::from_i8, |n| f32::from(n as u8 as i8));
        widened::<V>(&bytes, 4, V::from_i4, |n| {
            let four = bytes[n / 2] >> (n % 2 * 4) & 15;
            f32::from(four) - if four < 8 { 0.0 } else { 16.0 }
        });
    }
    on_every_tier!(check::<f32>);
    on_every_tier!(check::<f64>);
}
