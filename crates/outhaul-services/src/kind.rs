//! Which servers there are, and how they let a client in.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Kind {
    /// nats-server.
    Nats,
    /// redis-server.
    Redis,
    /// mosquitto.
    Mqtt,
    /// rabbitmq-server.
    Amqp,
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    Mysql,
    /// tansu.
    Kafka,
    /// pulsar-lite.
    Pulsar,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Nats,
        Self::Redis,
        Self::Mqtt,
        Self::Amqp,
        Self::Postgres,
        Self::Mysql,
        Self::Kafka,
        Self::Pulsar,
    ];

    /// Its name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::Redis => "redis",
            Self::Mqtt => "mqtt",
            Self::Amqp => "amqp",
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
            Self::Kafka => "kafka",
            Self::Pulsar => "pulsar",
        }
    }

    /// The variants that can be started here.
    pub fn accesses(self) -> &'static [Access] {
        match self {
            Self::Kafka | Self::Pulsar => &[Access::Plain],
            _ => &[Access::Plain, Access::Password, Access::Tls, Access::MutualTls],
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|kind| kind.name()).collect();
            format!("there is no server `{text}`; there are {}", names.join(", "))
        })
    }
}

/// How a server lets a client in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Access {
    /// Anybody, in the clear.
    #[default]
    Plain,
    /// The user with the password, in the clear.
    Password,
    /// Anybody who trusts its certificate, over TLS only.
    Tls,
    /// Whoever shows a certificate of the same authority, over TLS only.
    MutualTls,
}

impl Access {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Plain, Self::Password, Self::Tls, Self::MutualTls];

    /// Its name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Password => "password",
            Self::Tls => "tls",
            Self::MutualTls => "mutual-tls",
        }
    }

    /// Whether the line is encrypted.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::MutualTls)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Access {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|access| access.name() == text).ok_or_else(|| {
            format!("there is no variant `{text}`; there are plain, password, tls, mutual-tls")
        })
    }
}
