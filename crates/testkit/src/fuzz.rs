//! Inputs bent by chance, for parsers of what others wrote.
//!
//! A target is a function from bytes to a *kind* of outcome. Inputs come from a folder of good and bad
//! examples; one that leads to a kind not seen before joins them, so that later ones start from it.
//! Without `FUZZ_MINUTES` a fixed number of rounds from a fixed seed is run: the same for everybody.
//! With it the seed is the time's (or `SEED`), and with `KEEP=1` new examples are written down.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

const ROUNDS: usize = 3000;
/// Longer inputs are cut: they only make rounds slow.
const LONGEST: usize = 1 << 16;
const MOST_EXAMPLES: usize = 2000;
const NUMBERS: [&str; 12] = [
    "0",
    "-1",
    "1",
    "255",
    "256",
    "65535",
    "65536",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "99999999999999999999",
    "1e309",
];

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fuzzed {
    /// Inputs tried.
    pub rounds: usize,
    /// Kinds of outcomes seen.
    pub kinds: usize,
}

/// Runs `target` on the examples of `folder` (below `fixtures/fuzz`) and on what becomes of them when
/// `words` are put in, pieces taken out, bits turned over. A panic is reported with the input that led
/// to it, which is kept in the folder.
pub fn fuzz(folder: &str, words: &[&str], mut target: impl FnMut(&[u8]) -> u64) -> Fuzzed {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/fuzz").join(folder);
    let minutes = number("FUZZ_MINUTES");
    let seed = number("SEED").unwrap_or_else(|| match minutes {
        Some(_) => now_nanos(),
        None => 1,
    });
    let mut run = Run {
        examples: examples(&place),
        seen: BTreeSet::new(),
        chance: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        keep: std::env::var_os("KEEP").is_some().then(|| place.clone()),
    };
    let mut rounds = 0;
    for example in run.examples.clone() {
        rounds += 1;
        run.try_one(&place, &example, &mut target);
    }
    let end = minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    while end.map_or(rounds < ROUNDS, |end| Instant::now() < end) {
        rounds += 1;
        let input = run.bend(words);
        run.try_one(&place, &input, &mut target);
    }
    let fuzzed = Fuzzed { rounds, kinds: run.seen.len() };
    println!("{folder}: seed {seed}, {rounds} inputs, {} kinds of outcomes", fuzzed.kinds);
    fuzzed
}

/// Runs `target` on the examples of `folder` (below `fixtures/fuzz`): what was once found stays mended.
pub fn replay(folder: &str, target: impl Fn(&[u8])) {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/fuzz").join(folder);
    examples(&place).iter().for_each(|example| target(example));
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn now_nanos() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs().wrapping_mul(1_000_000_007) ^ u64::from(since.subsec_nanos())
}

fn examples(place: &Path) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(place).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.path()).collect();
    paths.sort();
    let read: Vec<Vec<u8>> = paths.iter().filter_map(|path| std::fs::read(path).ok()).collect();
    assert!(!read.is_empty(), "{} has examples", place.display());
    read
}

struct Run {
    examples: Vec<Vec<u8>>,
    seen: BTreeSet<u64>,
    chance: u64,
    keep: Option<PathBuf>,
}

impl Run {
    fn try_one(&mut self, place: &Path, input: &[u8], target: &mut impl FnMut(&[u8]) -> u64) {
        match catch_unwind(AssertUnwindSafe(|| target(input))) {
            Ok(kind) => {
                if self.seen.insert(kind) && self.examples.len() < MOST_EXAMPLES {
                    self.examples.push(input.to_vec());
                    if let Some(folder) = &self.keep {
                        // Somebody asked for it; a failure only loses the example.
                        let _ = std::fs::write(folder.join(format!("kind-{kind:016x}")), input);
                    }
                }
            }
            Err(panic) => {
                let name = format!("finding-{:016x}", hash(input));
                let file = place.join(name);
                let kept = std::fs::write(&file, input);
                eprintln!("{} ({kept:?}): {:?}", file.display(), String::from_utf8_lossy(input));
                resume_unwind(panic);
            }
        }
    }

    fn next(&mut self) -> u64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance
    }

    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() >> 16).unwrap_or(0) % most.max(1)
    }

    fn range(&mut self, length: usize) -> (usize, usize) {
        let from = self.below(length + 1);
        let most = (length - from).min(64);
        (from, from + self.below(most + 1))
    }

    /// An example, changed in one to eight ways.
    fn bend(&mut self, words: &[&str]) -> Vec<u8> {
        let at = self.below(self.examples.len());
        let mut input = self.examples[at].clone();
        for _ in 0..=self.below(8) {
            let (from, to) = self.range(input.len());
            match self.below(9) {
                0 if !input.is_empty() => {
                    let at = self.below(input.len());
                    input[at] ^= 1 << self.below(8);
                }
                1 if !input.is_empty() => {
                    let at = self.below(input.len());
                    input[at] = self.next().to_le_bytes()[3];
                }
                2 => drop(input.drain(from..to)),
                3 => {
                    let piece = input[from..to].to_vec();
                    let place = self.below(input.len() + 1);
                    input.splice(place..place, piece);
                }
                4 if !words.is_empty() => {
                    let word = words[self.below(words.len())].as_bytes().to_vec();
                    input.splice(from..from, word);
                }
                5 if !words.is_empty() => {
                    let word = words[self.below(words.len())].as_bytes().to_vec();
                    input.splice(from..to, word);
                }
                6 => {
                    let number = NUMBERS[self.below(NUMBERS.len())].bytes();
                    let digits: Vec<u8> = number.collect();
                    let start = input[..from].iter().rposition(|b| !b.is_ascii_digit());
                    let start = start.map_or(0, |place| place + 1);
                    input.splice(start..from, digits);
                }
                7 => {
                    let other = self.below(self.examples.len());
                    let other = self.examples[other].clone();
                    let (left, right) = self.range(other.len());
                    input.splice(from..to, other[left..right].iter().copied());
                }
                _ => input.truncate(to),
            }
        }
        input.truncate(LONGEST);
        input
    }
}

/// A number for some bytes; targets use it to tell kinds of outcomes apart.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |state, byte| {
        (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
