//! The functions of the fuzz targets over the corpus, over files that a log has just written, and over both with
//! bytes changed, cut, doubled and exchanged.

use std::path::Path;

use outhaul_store::{JournalOptions, SimDisk, fuzzing};

use crate::segments::{append, files, on, settle_all};
use crate::support::{attach, options, scale, seed};

/// Segments in all shapes, straight from logs.
fn written() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for compress in [false, true] {
        let (fs, log) = on(SimDisk::default(), JournalOptions { compress, ..options(1500) });
        attach(&log, &["a", "b"]);
        for id in 0..20 {
            append(&log, id, if id % 9 == 0 { &["a", "b"] } else { &["a"] }, 150);
        }
        log.set_input_sync("note".into()).unwrap();
        let before = fs.disk();
        settle_all(&log, "a");
        log.flush_sync().unwrap();
        log.close_sync().unwrap();
        for disk in [before, fs.disk()] {
            all.extend(files(&disk, "").iter().map(|path| disk.content(path).unwrap().to_vec()));
        }
    }
    all
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
}

fn mutated(base: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = base.to_vec();
    for _ in 0..random.usize(1..6) {
        if bytes.is_empty() {
            return bytes;
        }
        let at = random.usize(..bytes.len());
        match random.u8(..7) {
            0 => bytes.truncate(at),
            1 => bytes[at] = random.u8(..),
            2 => bytes[at] ^= 1 << random.u8(..8),
            3 => bytes.extend_from_within(at..),
            // Lengths and counts at their extremes.
            4 => bytes[at..].iter_mut().take(random.usize(1..9)).for_each(|byte| *byte = 0xFF),
            5 => bytes[at..].iter_mut().take(random.usize(1..9)).for_each(|byte| *byte = 0),
            _ => {
                let other = random.usize(..bytes.len());
                bytes.swap(at, other);
            }
        }
    }
    bytes
}

fn run(name: &str, target: fn(&[u8]), bases: &[Vec<u8>]) {
    assert!(!bases.is_empty());
    let seed = seed(name);
    let mut random = fastrand::Rng::with_seed(seed);
    bases.iter().for_each(|base| target(base));
    for _ in 0..4000 * scale() {
        target(&mutated(&bases[random.usize(..bases.len())], &mut random));
    }
    for _ in 0..1000 {
        let length = random.usize(..400);
        let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
        target(&noise);
    }
}

#[test]
fn sim_fuzz_any_bytes_are_read_as_a_segment() {
    run("fuzz segment", fuzzing::segment, &[written(), corpus("segment")].concat());
}

#[test]
fn sim_fuzz_any_bytes_are_read_as_a_footer() {
    let tail = |content: Vec<u8>| {
        let at = content.windows(4).rposition(|four| four == b"OHF1")?;
        Some(content[at..].to_vec())
    };
    let tails: Vec<_> = written().into_iter().filter_map(tail).collect();
    run("fuzz footer", fuzzing::footer, &[tails, corpus("footer")].concat());
}

#[test]
fn sim_fuzz_any_bytes_are_read_as_a_checkpoint() {
    let body = |content: Vec<u8>| Some(content.get(64 + 48 + 6..64 + 48 + 150)?.to_vec());
    let bodies: Vec<_> = written().into_iter().filter_map(body).collect();
    run("fuzz checkpoint", fuzzing::checkpoint, &[bodies, corpus("checkpoint")].concat());
}

/// Files of queue directories that other products wrote, with their names.
fn foreign() -> Vec<(String, Vec<u8>)> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let dirs = ["rustfs/rustfs-webhook-primary", "rustfs/rustfs-kafka-audit", "minio/minio-webhook-primary"];
    let files = dirs.iter().flat_map(|dir| std::fs::read_dir(golden.join(dir)).unwrap());
    let files = files.map(|file| file.unwrap()).filter(|file| file.file_type().unwrap().is_file());
    files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())).collect()
}

#[test]
fn sim_fuzz_any_bytes_are_read_as_an_entry_of_a_queue_directory() {
    let plain: Vec<_> = foreign().into_iter().filter(|(name, _)| !name.ends_with(".snappy")).collect();
    let plain: Vec<_> = plain.into_iter().map(|(_, content)| content).collect();
    run("fuzz entry", fuzzing::entry, &plain);
}

#[test]
fn sim_fuzz_any_bytes_are_decompressed() {
    let packed = foreign().into_iter().filter(|(name, _)| name.ends_with(".snappy"));
    run("fuzz compressed", fuzzing::compressed, &packed.map(|(_, content)| content).collect::<Vec<_>>());
}

#[test]
fn sim_fuzz_any_bytes_are_read_as_a_name() {
    run("fuzz name", fuzzing::name, &foreign().into_iter().map(|(name, _)| name.into()).collect::<Vec<_>>());
}
