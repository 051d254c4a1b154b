// SPDX-License-Identifier: GPL-2.0
//! `mutate SEED [QPN …]`: learns frames from its standard input and generates mutations of them
//! (see `sim::mutate::serve`), never for the given QPs. `ktests/vm/lib/attack_packets.py` sends
//! them.

use rxe_proto::sim::mutate::{serve, Mutator};
use std::io::{stdin, stdout, BufReader, BufWriter};

fn main() -> std::io::Result<()> {
    let mut numbers = std::env::args()
        .skip(1)
        .map(|word| word.parse().unwrap_or(0));
    let seed = numbers.next().unwrap_or(0);
    let excluded = numbers.map(|qpn: u64| (qpn & 0xff_ffff) as u32);
    let mut mutator = Mutator::new(seed, excluded);
    let (input, output) = (stdin().lock(), stdout().lock());
    serve(
        &mut mutator,
        &mut BufReader::new(input),
        &mut BufWriter::new(output),
    )
}
