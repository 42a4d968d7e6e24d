//! The target of `docs/adding-a-target.md`, which is what `cargo xtask new-target` begins with.

#[expect(unreachable_pub, reason = "it is the root of a crate elsewhere")]
mod target {
    include!("../../../../xtask/templates/target/lib.rs");
}

mod conformance {
    use super::target as outhaul_target_lines;

    include!("../../../../xtask/templates/target/conformance.rs");
}

const PAGE: &str = include_str!("../../../../docs/adding-a-target.md");
const TARGET: &str = include_str!("../../../../xtask/templates/target/lib.rs");
const TEST: &str = include_str!("../../../../xtask/templates/target/conformance.rs");

#[test]
fn the_page_shows_this_code_and_all_of_it() {
    let blocks: Vec<&str> =
        PAGE.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    for block in &blocks {
        assert!(TARGET.contains(block) || TEST.contains(block), "not in the code:\n{block}");
    }
    for source in [TARGET, TEST] {
        for line in source.lines().filter(|line| !line.trim().is_empty()) {
            assert!(blocks.iter().any(|block| block.contains(line)), "not on the page: {line}");
        }
    }
}

#[test]
fn target_and_test_have_less_than_a_hundred_lines() {
    let code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let count = TARGET.lines().chain(TEST.lines()).filter(code).count();
    assert!(count < 100, "{count} lines of code");
}

#[test]
fn its_destination_has_no_credentials() {
    let uri = outhaul_target::TargetUri::parse("lines://me:pw@h:1/?outhaul.timeout=1s").unwrap();
    assert_eq!(target::Lines::from_uri(uri).unwrap().destination(), "lines://h:1/");
}
