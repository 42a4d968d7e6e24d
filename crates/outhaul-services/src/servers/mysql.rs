//! MariaDB.

use std::process::Command;

use crate::error::Error;
use crate::files;
use crate::kind::Access;
use crate::server::Server;
use crate::{PASSWORD, USER};

pub(super) fn prepare(server: &Server) -> Result<(), Error> {
    let root = rustix::process::geteuid().is_root();
    let user = if root { "user=root\n" } else { "" };
    let base = format!(
        "[mariadbd]\n{user}datadir={}\nport={}\nbind-address=127.0.0.1\nsocket={}\npid-file={}\ninit-file={}\n\
         innodb_buffer_pool_size=32M\nskip-name-resolve",
        server.data().display(),
        server.address().port(),
        server.directory().join("socket").display(),
        server.directory().join("pid").display(),
        server.directory().join("init.sql").display()
    );
    let [ca, cert, key] = ["ca.pem", "server.pem", "server.key"].map(|file| server.tls(file));
    let tls = if server.access().is_tls() {
        format!("ssl-ca={ca}\nssl-cert={cert}\nssl-key={key}\nrequire_secure_transport=ON")
    } else {
        String::new()
    };
    let with = match server.access() {
        Access::Plain => String::new(),
        Access::Password => format!("IDENTIFIED BY '{PASSWORD}'"),
        Access::Tls => "REQUIRE SSL".to_owned(),
        Access::MutualTls => "REQUIRE X509".to_owned(),
    };
    // It is read at each start.
    let sql = format!(
        "CREATE DATABASE IF NOT EXISTS {USER};\nCREATE USER IF NOT EXISTS {USER}@'127.0.0.1' {with};\n\
         GRANT ALL ON *.* TO {USER}@'127.0.0.1';\n"
    );
    files::write(&server.directory().join("init.sql"), sql)?;
    let defaults = server.directory().join("my.cnf");
    files::write(&defaults, super::lines(server, &[&base, &tls]))?;
    let mut install = Command::new("mariadb-install-db");
    install.arg("--no-defaults").arg(format!("--datadir={}", server.data().display()));
    install.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
    if root {
        install.arg("--user=root");
    }
    files::run(&mut install).map(drop)
}

pub(super) fn command(server: &Server) -> Command {
    let mut command = Command::new(&server.program);
    command.arg(format!("--defaults-file={}", server.directory().join("my.cnf").display()));
    command
}
