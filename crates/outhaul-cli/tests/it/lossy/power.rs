//! Power cuts at random calls and at random times, also while the program recovers from the one before.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::load::{self, Load, OPTIONS, judge, line};
use super::{LossyDisk, Machine};
use crate::mounts::{may_mount, scale, seed};
use crate::receiver::{Act, Receiver};
use crate::support::{Running, pipe, program, request, start_pipe, until};

/// Cuts per unit of the scale.
const ROUNDS: u64 = 6;
/// Where a program does so little that its calls do not get as far as the freeze.
const PATIENCE: Duration = Duration::from_secs(2);

#[test]
fn what_a_relay_has_answered_outlives_power_cuts() {
    if !may_mount("lossy::power::what_a_relay_has_answered_outlives_power_cuts") {
        return;
    }
    let Some(mut disk) = LossyDisk::new() else { return };
    let random = &mut Rng::with_seed(seed("relay under power cuts"));
    let receiver = load::receiver(random.fork());
    let load = Load::start(random);
    for round in 0..ROUNDS * scale() {
        let (calls, cut) = plan(random, &disk);
        let mut machine = start(&disk, &receiver);
        let told = live(&mut machine, |machine| {
            let address = listening(machine.running());
            load.at(address);
            cut(&disk)
        });
        load.at(None);
        let end = End::choose(random);
        println!("round {round}: {end:?} after {calls} calls, answered: {}", load.answered());
        check(&told);
        end.of(&mut disk, machine, random);
    }
    finish(&disk, &receiver, load);
}

/// How a round ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Only what was synced is left.
    Cut,
    /// And some of what was not.
    CutInPart,
    /// The power stays, and with it what was not synced: the next program reads it, and a later cut takes it away.
    Kill,
}

impl End {
    fn choose(random: &mut Rng) -> Self {
        random.choice([Self::Cut, Self::CutInPart, Self::CutInPart, Self::Kill]).unwrap()
    }

    fn of(self, disk: &mut LossyDisk, machine: Machine, random: &mut Rng) {
        match self {
            Self::Cut => disk.cut(machine, None),
            Self::CutInPart => disk.cut(machine, Some(random)),
            Self::Kill => disk.kill(machine),
        }
    }
}

/// A relay that is to deliver to the receiver, from the disk.
pub(super) fn start(disk: &LossyDisk, receiver: &Receiver) -> Machine {
    let mut command = program();
    let to = format!("hook={}", receiver.uri(OPTIONS));
    command.args([
        "run",
        "--data",
        "data",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "off",
        "--drain-timeout",
        "5s",
        "--to",
        &to,
    ]);
    disk.machine(Running::start(command.current_dir(disk.path()).stdin(Stdio::null())))
}

pub(super) fn listening(running: &Running) -> Option<SocketAddr> {
    let told = running.stderr();
    let line = told.lines().find_map(|line| line.strip_prefix("listening on http://").map(str::to_owned));
    line.map(|line| line.parse().unwrap())
}

/// Starts a relay on a disk that is whole, lets it deliver everything, and judges.
pub(super) fn finish(disk: &LossyDisk, receiver: &Receiver, load: Load) {
    receiver.rule(|_| Act::Status(200));
    let mut machine = start(disk, receiver);
    let address = until("the relay's start", || {
        let running = machine.running();
        let told = running.stderr();
        assert!(running.child.try_wait().unwrap().is_none(), "the relay ended: {told}");
        listening(running)
    });
    load.at(Some(address));
    let refused = load.refused();
    let answered = load.stop();
    until("the deliveries", || {
        let targets = request(address, "GET", "/targets", &[], b"").unwrap().json();
        (load::waiting(&targets)? == 0).then_some(())
    });
    machine.running().signal(rustix::process::Signal::TERM);
    let ended = machine.end();
    ended.ended_with(0);
    check(&ended.stderr);
    println!("answered={} arrivals={} refused={refused:?}", answered.len(), receiver.arrivals().len());
    nothing_in(&disk.path().join("data/quarantine"));
    judge(&receiver.arrivals(), &answered);
}

/// When to cut the power: mostly at a call, often one of the first, which is where the program recovers.
fn plan(random: &mut Rng, disk: &LossyDisk) -> (u64, impl Fn(&LossyDisk) -> bool + use<>) {
    let calls = match random.u8(0..6) {
        0 | 1 => random.u64(0..16),
        2 => random.u64(16..200),
        3 | 4 => random.u64(200..2_500),
        _ => u64::MAX >> 1,
    };
    let until =
        Instant::now() + if calls > 2_500 { Duration::from_millis(random.u64(20..1_500)) } else { PATIENCE };
    disk.freeze_after(calls);
    (calls, move |disk: &LossyDisk| disk.state().frozen || Instant::now() >= until)
}

/// Waits for the time to cut; a program that ends before has a defect. Returns what it told.
fn live(machine: &mut Machine, mut over: impl FnMut(&mut Machine) -> bool) -> String {
    loop {
        let over = over(machine);
        let running = machine.running();
        let told = running.stderr();
        if let Some(status) = running.child.try_wait().unwrap() {
            panic!("the program ended by itself, with {status}:\n{told}");
        }
        if over {
            return told;
        }
        // bounded: by the time of the cut
        thread::sleep(Duration::from_millis(2));
    }
}

/// A cut of the power leaves torn tails and no damage.
fn check(told: &str) {
    for word in ["panicked", "damage", "quarantine", "ERROR"] {
        assert!(!told.contains(word), "{word}, after a power cut:\n{told}");
    }
}

fn nothing_in(dir: &Path) {
    let found: Vec<_> =
        std::fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    assert!(found.is_empty(), "taken for damage: {found:?}");
}

#[test]
fn an_input_piped_through_power_cuts_arrives_whole_and_in_order() {
    if !may_mount("lossy::power::an_input_piped_through_power_cuts_arrives_whole_and_in_order") {
        return;
    }
    let Some(mut disk) = LossyDisk::new() else { return };
    let random = &mut Rng::with_seed(seed("pipe under power cuts"));
    let receiver = load::receiver(random.fork());
    let (uri, cwd) = (receiver.uri(OPTIONS), tempfile::tempdir().unwrap());
    let data = disk.path().join("data");
    let args = ["--to", &uri, "--data", data.to_str().unwrap()];
    let mut next = [0_u64; 7];
    let ids: Vec<String> = (0..1_000 * scale())
        .map(|_| {
            let pid = random.usize(0..next.len());
            next[pid] += 1;
            format!("{pid}-{}", next[pid])
        })
        .collect();
    let input: String = ids.iter().map(|id| line(id)).collect();
    for round in 0..ROUNDS * scale() {
        let (calls, cut) = plan(random, &disk);
        let mut running = start_pipe(cwd.path(), &args);
        let stdin = running.child.stdin.take().unwrap();
        let mut machine = disk.machine(running);
        let (feed, pause) = (input.clone(), random.u64(0..8));
        let feeder = thread::spawn(move || feed_slowly(stdin, &feed, pause));
        let mut over = false;
        while !over && machine.running().child.try_wait().unwrap().is_none() {
            over = cut(&disk);
            // bounded: by the time of the cut
            thread::sleep(Duration::from_millis(2));
        }
        let told = machine.running().stderr();
        let end = End::choose(random);
        println!("round {round}: {end:?} after {calls} calls, ended before: {}", !over);
        if !over {
            // It may have come to the end of its input, and then it has delivered all of it.
            machine.end().ended_with(0);
            machine = disk.machine(start_pipe(cwd.path(), &args));
        }
        check(&told);
        end.of(&mut disk, machine, random);
        feeder.join().unwrap();
    }
    receiver.rule(|_| Act::Status(200));
    let ended = pipe(cwd.path(), &args, input.as_str());
    assert_eq!(ended.ended_with(0).summary().waiting, 0);
    println!("{} arrivals; the last run: {:?}", receiver.arrivals().len(), ended.summary());
    nothing_in(&data.join("quarantine"));
    judge(&receiver.arrivals(), &ids.into_iter().collect());
}

/// Writes an input in parts, until nobody reads it any more.
fn feed_slowly(mut to: impl std::io::Write, input: &str, pause_ms: u64) {
    for part in input.as_bytes().chunks(64 * 1024) {
        if to.write_all(part).is_err() {
            return;
        }
        // bounded: it paces the input
        thread::sleep(Duration::from_millis(pause_ms));
    }
}

/// A program that is killed leaves what it wrote and did not sync to be read by the next one, which may not build on
/// it before it has made it durable.
#[test]
fn a_kill_at_any_call_and_a_power_cut_after_it_lose_no_line() {
    if !may_mount("lossy::power::a_kill_at_any_call_and_a_power_cut_after_it_lose_no_line") {
        return;
    }
    let ids: Vec<String> = (0..60).map(|number| format!("{}-{}", number % 5, number / 5 + 1)).collect();
    let input: String = ids.iter().map(|id| line(id)).collect();
    let mut wrong = Vec::new();
    for calls in 0..4 * scale() {
        let Some(mut disk) = LossyDisk::new() else { return };
        let receiver = Receiver::new(|_| Act::Status(503));
        let (uri, cwd) = (receiver.uri(OPTIONS), tempfile::tempdir().unwrap());
        let data = disk.path().join("data");
        let args = ["--to", &uri, "--data", data.to_str().unwrap()];
        for cut in [false, true] {
            let mut running = start_pipe(cwd.path(), &args);
            let (mut stdin, feed) = (running.child.stdin.take().unwrap(), input.clone());
            let feeder = thread::spawn(move || stdin.write_all(feed.as_bytes()).unwrap_or_default());
            let mut machine = disk.machine(running);
            if !cut {
                disk.freeze_after(calls);
            }
            let end = Instant::now() + Duration::from_millis(700);
            live(&mut machine, |_| disk.state().frozen || Instant::now() >= end);
            match cut {
                true => disk.cut(machine, None),
                false => disk.kill(machine),
            }
            feeder.join().unwrap();
        }
        receiver.rule(|_| Act::Status(200));
        let ended = pipe(cwd.path(), &args, input.as_str());
        let arrivals = receiver.arrivals();
        let arrived =
            |id: &&String| arrivals.iter().any(|a| a.id() == id.as_str() && a.act == Act::Status(200));
        let lost = ids.iter().filter(|id| !arrived(id)).count();
        if lost > 0 || ended.code != Some(0) {
            println!(
                "killed at call {calls}: {lost} lines lost, ended with {:?}:\n{}",
                ended.code, ended.stderr
            );
            wrong.push((calls, lost));
        }
    }
    assert!(wrong.is_empty(), "calls at which the first run was killed, and lines lost: {wrong:?}");
}
