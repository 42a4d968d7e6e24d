#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| outhaul_store::fuzzing::entry(bytes));
