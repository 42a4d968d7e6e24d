//! PostgreSQL, which refuses root and then runs as its own user.

use std::path::Path;
use std::process::Command;

use crate::error::Error;
use crate::files;
use crate::kind::Access;
use crate::server::Server;
use crate::{PASSWORD, USER};

/// The user that Debian's package makes.
const OWNER: &str = "postgres";

pub(super) fn prepare(server: &Server) -> Result<(), Error> {
    own(server)?;
    let mut initdb = as_owner(&tool(server, "initdb"));
    initdb.arg("-D").arg(server.data()).args(["-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]);
    files::run(&mut initdb)?;
    let base = format!(
        "listen_addresses = '127.0.0.1'\nport = {}\nunix_socket_directories = '{}'\nlogging_collector = off",
        server.address().port(),
        server.directory().display()
    );
    let [ca, cert, key] = ["ca.pem", "server.pem", "server.key"].map(|file| server.tls(file));
    let tls = if server.access().is_tls() {
        format!("ssl = on\nssl_ca_file = '{ca}'\nssl_cert_file = '{cert}'\nssl_key_file = '{key}'")
    } else {
        String::new()
    };
    append(server, "postgresql.conf", &super::lines(server, &[&base, &tls]))?;
    let rule = match server.access() {
        Access::Plain => "host all all 127.0.0.1/32 trust",
        Access::Password => "host all all 127.0.0.1/32 scram-sha-256",
        Access::Tls => "hostssl all all 127.0.0.1/32 trust",
        Access::MutualTls => "hostssl all all 127.0.0.1/32 cert",
    };
    files::write(&server.data().join("pg_hba.conf"), format!("local all all trust\n{rule}\n"))?;
    own(server)
}

pub(super) fn command(server: &Server) -> Command {
    let mut command = as_owner(&server.program);
    command.arg("-D").arg(server.data());
    command
}

/// It listens long before it serves.
pub(super) fn answers(server: &Server) -> bool {
    let mut ready = Command::new(tool(server, "pg_isready"));
    ready.arg("-q").arg("-h").arg(server.directory()).args(["-p", &server.address().port().to_string()]);
    ready.status().is_ok_and(|status| status.success())
}

/// The database of the user's name, and the password: neither can be given to `initdb`.
pub(super) fn started(server: &Server) -> Result<(), Error> {
    let sql = |text: &str| {
        let mut psql = Command::new(tool(server, "psql"));
        psql.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-U",
            USER,
            "-d",
            "postgres",
            "-c",
            text,
        ]);
        psql.arg("-h").arg(server.directory()).args(["-p", &server.address().port().to_string()]);
        files::run(&mut psql)
    };
    if sql(&format!("SELECT 1 FROM pg_database WHERE datname = '{USER}'"))?.trim() == "1" {
        return Ok(());
    }
    sql(&format!("ALTER ROLE {USER} PASSWORD '{PASSWORD}'"))?;
    sql(&format!("CREATE DATABASE {USER}")).map(drop)
}

/// Gives the directory to the user that the server runs as.
pub(super) fn own(server: &Server) -> Result<(), Error> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let mut chown = Command::new("chown");
    files::run(chown.args(["-R", &format!("{OWNER}:{OWNER}")]).arg(server.directory())).map(drop)
}

fn tool(server: &Server, name: &str) -> std::path::PathBuf {
    server.program.with_file_name(name)
}

fn as_owner(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={OWNER}"), &format!("--regid={OWNER}"), "--init-groups"]).arg(program);
    command
}

fn append(server: &Server, name: &str, text: &str) -> Result<(), Error> {
    let path = server.data().join(name);
    let old = std::fs::read_to_string(&path).map_err(|source| Error::File { path: path.clone(), source })?;
    files::write(&path, old + text)
}
