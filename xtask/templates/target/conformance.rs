use std::time::Duration;

use outhaul_services::{LineReceiver, Proxy};
use outhaul_target::outhaul_event::{Event, Limits};
use outhaul_target::testkit::{Arrival, Condition, Fixture, Unsupported};
use outhaul_target::{TargetUri, async_trait};
use outhaul_target_lines::Lines;

struct Receiver(Proxy, LineReceiver);

#[async_trait]
impl Fixture for Receiver {
    type Target = Lines;

    async fn start() -> Self {
        let receiver = LineReceiver::start("ok");
        Self(Proxy::start(receiver.address()), receiver)
    }

    async fn target(&self, timeout: Duration) -> Lines {
        let uri = format!("lines://{}?outhaul.timeout={}ms", self.0.address(), timeout.as_millis());
        Lines::from_uri(TargetUri::parse(&uri).unwrap()).unwrap()
    }

    async fn arrived(&self) -> Vec<Arrival> {
        let limits = Limits { body_bytes_max: 1 << 21, ..Limits::default() };
        let event = |line: String| Event::from_json(line.as_bytes(), &limits).unwrap();
        self.1.lines().into_iter().map(|line| Arrival::from_event(&event(line), None)).collect()
    }

    async fn set(&self, condition: Condition) -> Result<(), Unsupported> {
        match condition {
            Condition::Healthy => (self.0.hold(false), self.0.refuse(false)).1,
            Condition::Refusing => self.0.refuse(true),
            Condition::Hanging => self.0.hold(true),
            Condition::Cutting => self.0.cut_after(20),
            Condition::Cut => self.0.cut(),
            _ => return Err(Unsupported("the receiver is a thread of the test")),
        }
        Ok(())
    }
}

outhaul_target::conformance!(Receiver);
