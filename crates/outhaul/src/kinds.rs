//! The kinds of targets that are compiled in, by the scheme of their URI.

use std::sync::Arc;

use outhaul_runtime::TargetSpec;
use outhaul_runtime::event::{TargetName, fnv1a64};
use outhaul_runtime::target::{ConfigError, Target, TargetUri};

/// The kind that a URI stands for; it names a target that was given no name.
pub(crate) fn kind(uri: &TargetUri) -> Result<&'static str, ConfigError> {
    match uri.scheme() {
        #[cfg(feature = "amqp")]
        "amqp" | "amqps" => Ok("amqp"),
        #[cfg(feature = "file")]
        "file" => Ok("file"),
        #[cfg(feature = "file")]
        "stdout" => Ok("stdout"),
        #[cfg(feature = "mqtt")]
        "mqtt" | "mqtts" => Ok("mqtt"),
        #[cfg(feature = "webhook")]
        "http" | "https" => Ok("webhook"),
        scheme => Err(ConfigError::new(
            format!("the scheme {scheme:?} is not known"),
            uri.redacted(),
            "no target of this build takes it",
            format!("use one of {}", known().join(", ")),
        )),
    }
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
pub(crate) fn target(uri: TargetUri) -> Result<(Arc<dyn Target>, String), ConfigError> {
    match kind(&uri)? {
        #[cfg(feature = "amqp")]
        "amqp" => {
            let amqp = outhaul_target_amqp::Amqp::from_uri(uri)?;
            let destination = amqp.destination().to_owned();
            Ok((Arc::new(amqp), destination))
        }
        #[cfg(feature = "file")]
        "file" | "stdout" => {
            let file = outhaul_target_file::FileTarget::from_uri(uri)?;
            let destination = file.destination();
            Ok((Arc::new(file), destination))
        }
        #[cfg(feature = "mqtt")]
        "mqtt" => {
            let mqtt = outhaul_target_mqtt::Mqtt::from_uri(uri)?;
            let destination = mqtt.destination().to_owned();
            Ok((Arc::new(mqtt), destination))
        }
        #[cfg(feature = "webhook")]
        "webhook" => {
            let webhook = outhaul_target_webhook::Webhook::from_uri(uri)?;
            let destination = webhook.destination().to_owned();
            Ok((Arc::new(webhook), destination))
        }
        other => Err(ConfigError::new("no such kind", other, "it is not compiled in", "use another target")),
    }
}

fn known() -> Vec<&'static str> {
    let mut known = Vec::new();
    if cfg!(feature = "amqp") {
        known.extend(["amqp://…", "amqps://…"]);
    }
    if cfg!(feature = "file") {
        known.extend(["file:PATH", "stdout:"]);
    }
    if cfg!(feature = "mqtt") {
        known.extend(["mqtt://…", "mqtts://…"]);
    }
    if cfg!(feature = "webhook") {
        known.extend(["http://…", "https://…"]);
    }
    known
}
