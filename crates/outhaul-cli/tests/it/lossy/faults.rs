//! Calls that fail under the real program: what it says, and that nothing answered is lost.

use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use fuser::Errno;
use rustix::process::Signal;

use super::fuse::{Call, Fault};
use super::load::{self, Load};
use super::power::{finish, listening, start};
use super::{LossyDisk, Machine};
use crate::mounts::{may_mount, scale, seed};
use crate::receiver::{Act, Receiver};
use crate::support::until;

/// What may fail, how, and behind how many calls of its kind.
const FAULTS: [(Call, Errno, [u64; 4]); 9] = [
    (Call::Sync, Errno::EIO, [0, 1, 3, 40]),
    (Call::Sync, Errno::ENOSPC, [0, 1, 20, 90]),
    (Call::Write, Errno::EIO, [0, 1, 4, 60]),
    (Call::Write, Errno::ENOSPC, [0, 1, 5, 70]),
    (Call::Create, Errno::EIO, [0, 1, 3, 6]),
    (Call::Create, Errno::ENOSPC, [0, 1, 4, 7]),
    (Call::SyncDir, Errno::EIO, [0, 1, 2, 3]),
    (Call::Rename, Errno::EIO, [0, 1, 2, 3]),
    (Call::Remove, Errno::EIO, [0, 1, 2, 3]),
];
/// How long a relay is watched in which no call fails.
const PATIENCE: Duration = Duration::from_millis(1_500);

#[test]
fn a_call_that_fails_loses_nothing_that_was_answered() {
    if !may_mount("lossy::faults::a_call_that_fails_loses_nothing_that_was_answered") {
        return;
    }
    let random = &mut Rng::with_seed(seed("failing calls"));
    for (call, error, counts) in FAULTS {
        for after in counts {
            for powered in [true, false] {
                println!("{call:?} {error:?} after {after}, power stays: {powered}");
                if fails(Fault { call, after, error }, powered, random).is_none() {
                    return;
                }
            }
        }
    }
}

fn fails(fault: Fault, powered: bool, random: &mut Rng) -> Option<()> {
    let mut disk = LossyDisk::new()?;
    let receiver = load::receiver(random.fork());
    let load = Load::start(random);
    // A directory that was used before, half of the time.
    if random.bool() {
        let mut machine = start(&disk, &receiver);
        until("answers", || {
            load.at(listening(machine.running()));
            (load.answered() > 20).then_some(())
        });
        load.at(None);
        disk.kill(machine);
    }
    disk.state().faults.push(fault);
    let failed_before = disk.state().failed;
    let mut machine = start(&disk, &receiver);
    let mut end = Instant::now() + PATIENCE;
    let mut hit = false;
    while Instant::now() < end && machine.running().child.try_wait().unwrap().is_none() {
        load.at(listening(machine.running()));
        if !hit && disk.state().failed > failed_before {
            (hit, end) = (true, Instant::now() + Duration::from_millis(300));
        }
        // bounded: by the patience
        thread::sleep(Duration::from_millis(5));
    }
    load.at(None);
    hit |= disk.state().failed > failed_before;
    println!("  hit: {hit}, answered: {}, refused: {:?}", load.answered(), load.refused());
    disk.state().faults.clear();
    match machine.running().child.try_wait().unwrap() {
        // One that cannot start says so, and ends as the manual says.
        Some(_) => {
            let ended = machine.end();
            println!("  ended by itself: {}", ended.stderr.trim_end());
            ended.ended_with(1).has("error: ");
        }
        None if powered => {
            machine.running().signal(Signal::TERM);
            let ended = machine.end();
            println!("  ended with {:?}: {}", ended.code, ended.stderr.lines().last().unwrap_or_default());
            assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        }
        None => {
            disk.cut(machine, random.bool().then_some(&mut *random));
        }
    }
    if powered {
        // What a failed sync left in memory was read by whoever opens it next; then it is gone.
        let mut machine = start(&disk, &receiver);
        let before = load.answered();
        until("answers", || {
            load.at(listening(machine.running()));
            (load.answered() > before + 10).then_some(())
        });
        load.at(None);
        disk.cut(machine, None);
    }
    finish(&disk, &receiver, load);
    Some(())
}

#[test]
fn a_full_disk_refuses_and_keeps_its_word_through_a_power_cut() {
    if !may_mount("lossy::faults::a_full_disk_refuses_and_keeps_its_word_through_a_power_cut") {
        return;
    }
    let random = &mut Rng::with_seed(seed("a full disk"));
    for round in 0..scale() {
        let Some(mut disk) = LossyDisk::new() else { return };
        disk.state().disk.capacity = random.u64(600_000..6_000_000);
        let receiver = Receiver::new(|_| Act::Status(503));
        let load = Load::start(random);
        let mut machine = start(&disk, &receiver);
        refused(&load, &mut machine, &["disk_full", "queue_full"]);
        println!("round {round}: answered: {}, refused: {:?}", load.answered(), load.refused());
        load.at(None);
        disk.cut(machine, random.bool().then_some(&mut *random));
        // It starts on the disk that is full, and what it delivers makes room for more.
        receiver.rule(|_| Act::Status(200));
        let mut machine = start(&disk, &receiver);
        let before = load.answered();
        until("answers again", || {
            assert!(machine.running().child.try_wait().unwrap().is_none(), "{}", machine.running().stderr());
            load.at(listening(machine.running()));
            (load.answered() > before + 100).then_some(())
        });
        load.at(None);
        disk.cut(machine, None);
        finish(&disk, &receiver, load);
    }
}

fn refused(load: &Load, machine: &mut Machine, reasons: &[&str]) {
    until("a refusal", || {
        load.at(listening(machine.running()));
        load.refused().keys().any(|(_, reason)| reasons.contains(&reason.as_str())).then_some(())
    });
}
