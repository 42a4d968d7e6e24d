//! Random histories: whatever a target answers and however often the runtime is stopped, nothing is lost, nothing is
//! delivered twice by a clean stop, and order holds.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul_runtime::store::Store;
use outhaul_runtime::target::{BatchOrder, ErrorKind};
use proptest::prelude::*;

use crate::support::{Scripted, event, only, options, pass, settled, spec, start_on};

const KINDS: [ErrorKind; 6] = [
    ErrorKind::ConnectionReset,
    ErrorKind::ServerFault,
    ErrorKind::TimedOut,
    ErrorKind::Throttled,
    ErrorKind::Authentication,
    ErrorKind::Unknown,
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_or_disordered(
        seed in any::<u64>(),
        pids in 1_u64..8,
        count in 1_u64..120,
        failing in 0_u8..80,
        batch in 1_usize..20,
        ordered in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(history(seed, pids, count, failing, batch, ordered));
    }
}

async fn history(seed: u64, pids: u64, count: u64, failing: u8, batch: usize, ordered: bool) {
    let random = Arc::new(Mutex::new(fastrand::Rng::with_seed(seed)));
    let dice = Arc::clone(&random);
    let order = if ordered { BatchOrder::Prefix } else { BatchOrder::None };
    let target = Scripted::new(move |attempt| {
        let mut dice = dice.lock().unwrap();
        if attempt.event.id().ends_with("13") {
            return Err(ErrorKind::Malformed.into());
        }
        if dice.u8(0..100) < failing { Err(KINDS[dice.usize(0..KINDS.len())].into()) } else { Ok(()) }
    })
    .batches(batch, order);
    let runtime = start_on(Store::memory(), vec![spec("a", &target, options())]).await.unwrap();
    let mut rejected = 0;
    for number in 0..count {
        let pid = format!("pid-{}", random.lock().unwrap().u64(0..pids));
        let pid = (number % 5 > 0).then_some(pid);
        rejected += u64::from(number.to_string().ends_with("13"));
        runtime.send(event(number, pid.as_deref())).await.unwrap();
        if number % 7 == 0 {
            let wait = random.lock().unwrap().u64(0..300);
            pass(Duration::from_millis(wait)).await;
            only(&runtime);
        }
    }
    settled(&runtime).await;
    let status = only(&runtime);
    assert_eq!((status.delivered, status.failed, status.waiting), (count - rejected, rejected, 0));
    assert_eq!(target.delivered().len() as u64, count - rejected, "each exactly once");
    target.check_order();
}
