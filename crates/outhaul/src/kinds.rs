//! The kinds of targets that are compiled in, by the scheme of their URI.

use std::sync::Arc;

use outhaul_runtime::TargetSpec;
use outhaul_runtime::event::{TargetName, fnv1a64};
use outhaul_runtime::target::{ConfigError, Target, TargetUri};

/// What a URI becomes: the target, and where it delivers to.
type Made = Result<(Arc<dyn Target>, String), ConfigError>;

/// One kind of target.
struct Kind {
    /// It names a target that was given no name.
    name: &'static str,
    /// The schemes of its URIs.
    schemes: &'static [&'static str],
    /// What its URIs look like.
    forms: &'static [&'static str],
    make: fn(TargetUri) -> Made,
}

macro_rules! make {
    ($target:ty) => {
        |uri| {
            let target = <$target>::from_uri(uri)?;
            let destination = target.destination().to_string();
            Ok((Arc::new(target), destination))
        }
    };
}

/// All that are compiled in.
const KINDS: &[Kind] = &[
    #[cfg(feature = "file")]
    Kind {
        name: "file",
        schemes: &["file"],
        forms: &["file:PATH"],
        make: make!(outhaul_target_file::FileTarget),
    },
    #[cfg(feature = "file")]
    Kind {
        name: "stdout",
        schemes: &["stdout"],
        forms: &["stdout:"],
        make: make!(outhaul_target_file::FileTarget),
    },
    #[cfg(feature = "nats")]
    Kind {
        name: "nats",
        schemes: &["nats", "nats+tls", "tls"],
        forms: &["nats://…", "nats+tls://…"],
        make: make!(outhaul_target_nats::Nats),
    },
    #[cfg(feature = "redis")]
    Kind {
        name: "redis",
        schemes: &["redis", "rediss", "valkey", "valkeys"],
        forms: &["redis://…", "rediss://…", "valkey://…", "valkeys://…"],
        make: make!(outhaul_target_redis::Redis),
    },
    #[cfg(feature = "amqp")]
    Kind {
        name: "amqp",
        schemes: &["amqp", "amqps"],
        forms: &["amqp://…", "amqps://…"],
        make: make!(outhaul_target_amqp::Amqp),
    },
    #[cfg(feature = "mqtt")]
    Kind {
        name: "mqtt",
        schemes: &["mqtt", "mqtts"],
        forms: &["mqtt://…", "mqtts://…"],
        make: make!(outhaul_target_mqtt::Mqtt),
    },
    #[cfg(feature = "webhook")]
    Kind {
        name: "webhook",
        schemes: &["http", "https"],
        forms: &["http://…", "https://…"],
        make: make!(outhaul_target_webhook::Webhook),
    },
    // `cargo xtask new-target` writes above this line.
];

fn find(uri: &TargetUri) -> Result<&'static Kind, ConfigError> {
    KINDS.iter().find(|kind| kind.schemes.contains(&uri.scheme())).ok_or_else(|| {
        let forms: Vec<&str> = KINDS.iter().flat_map(|kind| kind.forms).copied().collect();
        ConfigError::new(
            format!("the scheme {:?} is not known", uri.scheme()),
            uri.redacted(),
            "no target of this build takes it",
            format!("use one of {}", forms.join(", ")),
        )
    })
}

/// The kind that a URI stands for; it names a target that was given no name.
pub(crate) fn kind(uri: &TargetUri) -> Result<&'static str, ConfigError> {
    find(uri).map(|kind| kind.name)
}

/// The target of a URI under a name, which can be told from others and made again.
pub(crate) fn spec(name: TargetName, uri: &str) -> Result<TargetSpec, ConfigError> {
    let parsed = TargetUri::parse(uri)?;
    let options = parsed.options().clone();
    let (made, destination) = target(parsed)?;
    let mut spec = TargetSpec::new(name, made, options, destination);
    spec.fingerprint = Some(fnv1a64(uri.as_bytes()));
    let uri = uri.to_owned();
    spec.remake = Some(Arc::new(move || {
        let made = TargetUri::parse(&uri).and_then(target);
        made.map(|(target, _)| target).map_err(|error| error.to_string())
    }));
    Ok(spec)
}

/// Builds the target of a URI, and says where it delivers to. Nothing is connected or opened yet.
///
/// # Errors
/// The URI is not valid, or no target that is compiled in takes it.
pub fn target(uri: TargetUri) -> Result<(Arc<dyn Target>, String), ConfigError> {
    (find(&uri)?.make)(uri)
}
