//! What people use in Rust instead, behind the protocol of the ports: `rosetta-peers candle`, `… rten` or `… faer`.
//!
//! Each composes attention from its own products and, where it has one, its own softmax, on one thread; what is read
//! and converted is not timed, and what a user would make once, the table of a causal mask, is not either.

mod candle;
mod case;
mod faer;
mod rten;
mod serve;

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("candle") => serve::serve::<candle::Candle>(),
        Some("rten") => serve::serve::<rten::Rten>(),
        Some("faer") => serve::serve::<faer::Faer>(),
        _ => {
            eprintln!("rosetta-peers: expected candle, rten or faer");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
