//! What this machine can do at most on one thread, for the bench to hold its figures against: one line of JSON.
//!
//!     limits [SECONDS [MEBIBYTES]]      of each measurement, of the memory that is walked; 0.3 and 512 without
//!
//! Every figure is the best of many short runs: what else the machine does only ever takes from it. It uses nothing
//! but the standard library, so that `rustc -O` builds it while the library beside it is being worked on.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

const MOST_SECONDS: f64 = 60.0;
const MOST_MEBIBYTES: usize = 1 << 20;
const ROUNDS: usize = 20_000; // of the multiply-add loop in one run: about a tenth of a millisecond
const CHAINS: usize = 24; // two units of four cycles need 8 independent chains; the registers hold up to 28
const LINE: usize = 8; // u64 of a cache line

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (seconds, mebibytes) = match read_arguments(&arguments) {
        Ok(plan) => plan,
        Err(message) => {
            eprintln!("limits: {message}");
            return ExitCode::from(2);
        }
    };
    let tier = Tier::best();
    let gflops = best_rate(seconds, || tier.multiply_add());
    let mut memory = vec![0u64; (mebibytes << 20) / size_of::<u64>()];
    for (n, x) in memory.iter_mut().enumerate() {
        *x = n as u64; // every page of its own: pages of zeros may be one and the same
    }
    let bytes = size_of_val(&memory[..]) as f64;
    let read = best_rate(seconds, || (bytes, tier.read::<1>(&memory)));
    let read4 = best_rate(seconds, || (bytes, tier.read::<4>(&memory)));
    let (from, to) = memory.split_at_mut((mebibytes << 20) / size_of::<u64>() / 2);
    let copy = best_rate(seconds, || {
        to.copy_from_slice(black_box(from));
        (bytes, black_box(&*to)[0]) // half is read, half is written
    });
    println!(
        "{{\"tier\":\"{}\",\"fma_gflops\":{gflops:.3},\"read_gbs\":{read:.3},\"read4_gbs\":{read4:.3},\
         \"copy_gbs\":{copy:.3},\"mebibytes\":{mebibytes}}}",
        tier.name()
    );
    ExitCode::SUCCESS
}

/// Seconds of each measurement, and mebibytes of memory.
fn read_arguments(arguments: &[String]) -> Result<(f64, usize), String> {
    if arguments.len() > 2 {
        return Err(format!("expected SECONDS and MEBIBYTES, got {} arguments", arguments.len()));
    }
    let seconds = arguments.first().map_or("0.3", String::as_str);
    let mebibytes = arguments.get(1).map_or("512", String::as_str);
    let seconds =
        seconds.parse().ok().filter(|s| (0.0..=MOST_SECONDS).contains(s)).ok_or_else(|| {
            format!("seconds: expected a number from 0 to {MOST_SECONDS}, got {seconds}")
        })?;
    let mebibytes =
        mebibytes.parse().ok().filter(|m| (1..=MOST_MEBIBYTES).contains(m)).ok_or_else(|| {
            format!("mebibytes: expected an integer from 1 to {MOST_MEBIBYTES}, got {mebibytes}")
        })?;
    Ok((seconds, mebibytes))
}

/// The best of the runs that fit into the time, in 10^9 a second; a run says how much it did, and a result to keep.
fn best_rate<R>(seconds: f64, mut run: impl FnMut() -> (f64, R)) -> f64 {
    black_box(run().1); // warms up
    let (begun, mut best) = (Instant::now(), 0.0_f64);
    loop {
        let start = Instant::now();
        let (done, result) = run();
        black_box(result);
        best = best.max(done / start.elapsed().as_nanos().max(1) as f64);
        if begun.elapsed().as_secs_f64() >= seconds {
            return best;
        }
    }
}

/// An instruction set that this machine has.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Tier {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Tier {
    fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        }
    }

    /// Floating-point operations done, a multiply-add being two, and their result.
    fn multiply_add(self) -> (f64, f32) {
        match self {
            // SAFETY: the machine has the instruction set: `best` looked.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { multiply_add_512() },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { multiply_add_256() },
            Self::Portable => multiply_add_portable(),
        }
    }

    /// Reads all of it as so many streams that are walked at once.
    fn read<const STREAMS: usize>(self, memory: &[u64]) -> u64 {
        match self {
            // SAFETY: the machine has the instruction set: `best` looked.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { read_512::<STREAMS>(memory) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { read_256::<STREAMS>(memory) },
            Self::Portable => read_portable::<STREAMS>(memory),
        }
    }
}

/// Different for each chain and unknown to the compiler, which would make one of equal chains.
fn starts() -> [f32; CHAINS] {
    black_box(std::array::from_fn(|n| n as f32))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn multiply_add_512() -> (f64, f32) {
    use std::arch::x86_64::*;
    let (a, b) = (_mm512_set1_ps(black_box(1e-3)), _mm512_set1_ps(black_box(1e-3)));
    let mut sums = starts().map(|x| _mm512_set1_ps(x));
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(a, b, *sum);
        }
    }
    let total = sums.iter().map(|&sum| _mm512_reduce_add_ps(sum)).sum();
    ((2 * 16 * CHAINS * ROUNDS) as f64, total)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_add_256() -> (f64, f32) {
    use std::arch::x86_64::*;
    const FEWER: usize = 12; // of 16 registers
    let (a, b) = (_mm256_set1_ps(black_box(1e-3)), _mm256_set1_ps(black_box(1e-3)));
    let starts = starts();
    let mut sums: [__m256; FEWER] = std::array::from_fn(|n| _mm256_set1_ps(starts[n]));
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(a, b, *sum);
        }
    }
    let total = sums.iter().map(|&sum| _mm256_cvtss_f32(sum)).sum();
    ((2 * 8 * FEWER * ROUNDS) as f64, total)
}

/// Four lanes a chain, which every machine has. Multiply and add apart where there is no instruction for both:
/// `mul_add` would call a function.
fn multiply_add_portable() -> (f64, f32) {
    const LANES: usize = 4;
    let (a, b) = (black_box(0.999_f32), black_box(1e-3_f32));
    let mut sums = starts().map(|x| [x; LANES]);
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            for x in sum {
                *x = if cfg!(target_arch = "aarch64") { x.mul_add(a, b) } else { *x * a + b };
            }
        }
    }
    let total = sums.iter().flatten().sum();
    ((2 * LANES * CHAINS * ROUNDS) as f64, total)
}

/// A line of each part in turn, then the next ones. Written with intrinsics: left to itself, the compiler gathers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn read_512<const N: usize>(memory: &[u64]) -> u64 {
    use std::arch::x86_64::*;
    let (parts, each) = split::<N>(memory);
    let mut seen = [_mm512_setzero_si512(); N];
    for at in 0..each {
        for (seen, part) in seen.iter_mut().zip(&parts) {
            // SAFETY: a line is 64 bytes.
            let line = unsafe { _mm512_loadu_si512(part[at].as_ptr().cast()) };
            *seen = _mm512_xor_si512(*seen, line);
        }
    }
    seen.iter().fold(0, |all, &x| all ^ _mm512_reduce_add_epi64(x) as u64)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn read_256<const N: usize>(memory: &[u64]) -> u64 {
    use std::arch::x86_64::*;
    let (parts, each) = split::<N>(memory);
    let mut seen = [[_mm256_setzero_si256(); 2]; N];
    for at in 0..each {
        for (seen, part) in seen.iter_mut().zip(&parts) {
            let (low, high) = part[at].split_at(LINE / 2);
            // SAFETY: half a line is 32 bytes.
            let line = unsafe {
                [_mm256_loadu_si256(low.as_ptr().cast()), _mm256_loadu_si256(high.as_ptr().cast())]
            };
            *seen = [_mm256_xor_si256(seen[0], line[0]), _mm256_xor_si256(seen[1], line[1])];
        }
    }
    seen.iter().flatten().fold(0, |all, &x| all ^ _mm256_extract_epi64::<0>(x) as u64)
}

fn read_portable<const N: usize>(memory: &[u64]) -> u64 {
    let (parts, each) = split::<N>(memory);
    let mut seen = [0u64; N];
    for at in 0..each {
        for (seen, part) in seen.iter_mut().zip(&parts) {
            *seen = part[at].iter().fold(*seen, |all, x| all ^ x);
        }
    }
    seen.iter().fold(0, |all, x| all ^ x)
}

/// N equal parts in lines, and the lines of each.
#[inline(always)]
fn split<const N: usize>(memory: &[u64]) -> ([&[[u64; LINE]]; N], usize) {
    let (lines, _) = memory.as_chunks::<LINE>();
    let each = lines.len() / N;
    (std::array::from_fn(|n| &lines[n * each..][..each]), each)
}
